"""Results of one way in one cell, over all rounds."""

import dataclasses
import statistics

from peers.cells import bound, total


STRUCK = 1  # the job during which a rail dies, among those that count


class Score:
    """The jobs of one way in one cell. Times are over the bound; where nothing is shaped, they are GB/s."""

    def __init__(self, cell):
        self.cell = cell
        self.ratios, self.ratios_after, self.costs = [], [], []
        self.wrong, self.stopped = 0, ""

    def add(self, task, outcome, warmup, softirq):
        """Adds a round. `softirq`: processor seconds of ksoftirqd during the round."""
        self.wrong += outcome.wrong
        self.stopped = self.stopped or outcome.stopped or ("wrong bytes" if outcome.wrong else "")
        if self.stopped or not outcome.seconds:
            return
        if self.cell.state == "unshaped":
            self.ratios += [total(task.rows) / 1e9 / seconds for seconds in outcome.seconds]
            softirq *= len(outcome.seconds) / (len(outcome.seconds) + warmup)
            self.costs.append((outcome.processor_seconds + softirq) / outcome.processor_bytes * 1e9)
            return
        least, times = bound(task.cell, task.rows), outcome.seconds
        if self.cell.state == "dying":
            after = bound(dataclasses.replace(self.cell, state="dead"), task.rows)
            self.ratios_after += [seconds / after for seconds in times[STRUCK + 1:]]
            times = times[STRUCK:STRUCK + 1]
        self.ratios += [seconds / least for seconds in times]

    @property
    def measured(self):
        return bool(self.ratios or self.stopped)

    @property
    def value(self):
        """The median, or None."""
        return statistics.median(self.ratios) if self.ratios and not self.stopped else None

    @property
    def after(self):
        return statistics.median(self.ratios_after) if self.ratios_after and not self.stopped else None

    @property
    def per_gigabyte(self):
        return statistics.median(self.costs) if self.costs else None

    def brief(self):
        return self.stopped or f"{self.value:.3f}" + (f" then {self.after:.3f}" if self.after else "")

    def json(self):
        return {"ratios": self.ratios, "after": self.ratios_after, "processor": self.costs, "wrong": self.wrong, "stopped": self.stopped}


def best_peer(row):
    """The name of the peer that comes first in a cell, or None."""
    peers = {name: score.value for name, score in row.items() if name != "railsd" and score.value is not None}
    if not peers:
        return None
    unshaped = next(iter(row.values())).cell.state == "unshaped"
    return (max if unshaped else min)(peers, key=peers.get)
