#!/usr/bin/env python3
"""Every fault there is, at random moments, under several groups of trainers that compare every byte. Needs root.

    ./dev test soak --minutes 10 --seed 7

Real daemons in network namespaces (bench/lab.py), one of which is cut, stopped or killed now and then while links,
addresses, routes and connections of the others come and go. A job may end well, or fail as promised for a fault that was
there (`PROMISES` in teams.py); anything else is a complaint and fails the soak, and so do wrong bytes, hangs, daemons
that end by themselves, and whatever a daemon still holds when all is over. The same seed draws the same faults and jobs
in the same order; the moments at which they meet differ from run to run.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))

import harness  # noqa: E402  (found by the line above)
from harness import clusters, eventually, footprint  # noqa: E402

import lab as labs  # noqa: E402
from faults import Injector  # noqa: E402
from teams import PATIENCE, PatientServer, Record, Team  # noqa: E402

NODES, RAILS, RATE, TEAMS = 3, 4, "200mbit", 3
SLACK_DESCRIPTORS = 8  # of one kind: gRPC makes some lazily
SLACK_MEMORY = 96 << 20  # bytes over what a daemon held when it was warm
FABRIC_PATIENCE = 600  # another fabric may be up: benchmarks and tests take turns
SETTINGS = clusters.Settings(nodes=NODES, rails=RAILS, speed=RATE, sections={
    "timeouts": {"peer_lost": "3s", "job": "2m", "join": "1m"}})


def say(text):
    print(text, file=sys.stderr, flush=True)


def memory(pid):
    """Resident bytes of the daemon's own, without the trainers' segments."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def fabric():
    """The emulated fabric; waits for another one to go down."""
    deadline, lab = time.monotonic() + FABRIC_PATIENCE, labs.Lab(nodes=NODES, rails=RAILS, rate=RATE)
    while True:
        try:
            return lab.__enter__()
        except labs.LabError as error:
            if "another fabric is up" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(1)


class Soak:
    """One run, in the thread that starts the daemons."""

    def __init__(self, lab, cluster, options):
        self.lab, self.cluster, self.options = lab, cluster, options
        self.teams, self.server = [], None
        self.injector = Injector(lab, cluster, self.teams, options.seed)
        self.record = Record(self.injector.chronicle)
        self.leaks, self.held_before, self.memory_before = [], {}, 0
        self.memory_after = {}

    def run(self):
        self.injector.check_overlaps()
        self._warm()
        with PatientServer() as self.server:
            for number in range(TEAMS):
                self.teams.append(Team(f"team{number}", self.cluster, self.server, self.record, self.options.seed))
            begin = time.monotonic()
            self.minutes = self.options.minutes
            for team in self.teams:
                team.start()
            try:
                self._disturb(begin + 60 * self.minutes)
            finally:
                self.injector.mend()
                for team in self.teams:
                    team.stop()
                self._end_teams()
        self._check_daemons()

    def _warm(self):
        """Uses the daemons once, because what they make at first use is no leak."""
        for _ in range(2):
            self._replay()
        self._wait_idle()
        feet = [footprint(node.pid) for node in self.cluster.nodes]
        for what in ("descriptors", "threads"):
            self.held_before[what] = {kind: max(foot[what].get(kind, 0) for foot in feet)
                                      for foot in feet for kind in foot[what]}
        self.memory_before = max(memory(node.pid) for node in self.cluster.nodes)

    def _replay(self):
        report = self.cluster.replay("--verify", "--workload", "zipf", "--bytes-per-rank", "4MiB", "--steps", 2,
                                     "--ranks-per-node", 2, "--seed", self.options.seed)
        if not report["verified"]:
            self.record.complain("a replay without faults brought wrong bytes")

    def _disturb(self, end):
        last = 0
        while time.monotonic() < end and not self.record.complaints:
            self.injector.step()
            for node in self.injector.deaths:
                self.record.complain(f"the daemon of {node.name} ended by itself with {node.process.poll()}")
            if time.monotonic() - last >= 5:
                last = time.monotonic()
                self._progress(end - last)
            time.sleep(0.02)

    def _progress(self, left):
        record = self.record
        failed = sum(number for code, number in record.outcomes.items() if code not in ("OK", "KILLED"))
        say(f"{left:6.0f} s left: {record.jobs} jobs in {record.groups} groups, ranks ok {record.outcomes['OK']}, "
            f"failed as promised {failed}, faults {sum(self.injector.chronicle.counts().values())}; now: "
            f"{', '.join(self.injector.lasting()) or 'none'}")

    def _end_teams(self):
        deadline = time.monotonic() + PATIENCE
        for team in self.teams:
            if not team.join(max(0.0, deadline - time.monotonic())):
                self.record.complain(f"{team.name} does not end: group {team.number}, it does {team.doing}")

    def _idle(self, node):
        status = self.cluster.overview(node)["status"]
        rails = self.cluster.overview(node)["rails"]
        return (not status["sessions"] and not status["groups"] and not int(status["jobs_active"]) and
                not any(rail["queued_bytes"] + rail["in_flight_bytes"] for rail in rails))

    def _wait_idle(self):
        for node in self.cluster.nodes:
            eventually(lambda node=node: self._idle(node), lambda node=node: f"{node.name} idle: "
                       f"{self.cluster.overview(node)['status']}", patience=120)

    def _excess(self, node):
        """Things that the daemon holds and should not, as texts."""
        held, excess = footprint(node.pid), []
        if held["mapped"]:
            excess.append(f"{held['mapped']} segments")
        for what, slack in (("descriptors", SLACK_DESCRIPTORS), ("threads", 0)):
            for kind, count in held[what].items():
                before = self.held_before[what].get(kind, 0)
                if count > before + slack:
                    excess.append(f"{count} {what} {kind} (before {before})")
        self.memory_after[node.name] = memory(node.pid)
        if self.memory_after[node.name] > self.memory_before + SLACK_MEMORY:
            excess.append(f"{self.memory_after[node.name] >> 20} MiB of memory (before {self.memory_before >> 20})")
        return excess

    def _check_daemons(self):
        """All is whole again: the daemons find each other, do a job, and hold nothing."""
        try:
            self.cluster.wait_ready(180)
            self.injector.undrain()
            self._replay()
            self._wait_idle()
        except (clusters.ClusterError, AssertionError) as error:
            self.record.complain(f"after the faults: {error}")
            return
        for node in self.cluster.nodes:
            deadline = time.monotonic() + 60
            while (excess := self._excess(node)) and time.monotonic() < deadline:
                time.sleep(0.2)
            self.leaks += [f"{node.name} holds {what}" for what in excess]
            broken = node.log.read_text(errors="replace").count("protocol_error")
            if broken:
                self.record.complain(f"{node.name} logged {broken} errors of protocols, though every daemon is ours")
        for node in self.cluster.nodes:
            status = self.cluster.stop_node(node, timeout=60)
            if status != 0:
                self.record.complain(f"the daemon of {node.name} ended with {status} on SIGTERM")

    def report(self):
        record = self.record
        minutes = f"{self.options.minutes:g}"
        report = {
            "seed": self.options.seed, "minutes": self.options.minutes, "jobs": record.jobs, "groups": record.groups,
            "bytes_compared": record.bytes, "ranks_ok": record.outcomes["OK"],
            "ranks_killed": record.outcomes["KILLED"],
            "failed_as_promised": {code: count for code, count in sorted(record.outcomes.items())
                                   if code not in ("OK", "KILLED")},
            "refused": {code: count for code, count in sorted(record.refused.items()) if code not in ("OK", "KILLED")},
            "silent_because_busy": record.busy, "faults": self.injector.chronicle.counts(),
            "wrong_bytes": record.wrong_bytes, "leaks": self.leaks, "complaints": record.complaints,
            "memory_mib": {"warm": self.memory_before >> 20,
                           **{name: held >> 20 for name, held in sorted(self.memory_after.items())}},
            "again": f"./dev test soak --minutes {minutes} --seed {self.options.seed}",
        }
        return {**report, "text": table(report)}


def table(report):
    """The report for people."""
    faults = ", ".join(f"{kind} {count}" for kind, count in report["faults"].items())
    failed = ", ".join(f"{code} {count}" for code, count in report["failed_as_promised"].items()) or "none"
    refused = ", ".join(f"{code} {count}" for code, count in report["refused"].items()) or "none"
    held = ", ".join(f"{name} {mib}" for name, mib in report["memory_mib"].items())
    lines = [
        f"jobs run            {report['jobs']} in {report['groups']} groups; {report['ranks_ok']} ranks ended well, "
        f"{report['bytes_compared'] >> 20} MiB compared",
        f"faults injected     {sum(report['faults'].values())}: {faults}",
        f"failed as promised  {failed}; {report['ranks_killed']} ranks were killed themselves",
        f"refused as promised {refused} (before a job: connecting, joining, submitting)",
        f"wrong bytes         {report['wrong_bytes']}",
        f"leaks               {len(report['leaks'])}; memory in MiB: {held}",
        f"complaints          {len(report['complaints'])}",
        *[f"  {text}" for text in report["leaks"] + report["complaints"]],
        f"again               {report['again']}",
    ]
    if report["silent_because_busy"]:
        lines.insert(4, f"busy machine        {report['silent_because_busy']} of these for daemons that nobody had stopped")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="./dev test soak", description="All faults at once, for a while.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--build", default=str(harness.BUILD))
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on standard output")
    options = parser.parse_args()
    harness.BUILD = Path(options.build).resolve()
    clusters.exit_on_signals()
    say(f"soak: seed {options.seed}, {options.minutes:g} minutes")
    try:
        lab = fabric()
    except labs.LabError as error:
        print(json.dumps({"skipped": str(error)}) if options.json else f"skipped: {error}", flush=True)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="railsd-soak-"))
    soak = None
    try:
        with clusters.Cluster(SETTINGS, build=harness.BUILD, folder=folder, addresses=lab) as cluster:
            soak = Soak(lab, cluster, options)
            soak.run()
    finally:
        lab.__exit__(None, None, None)
        if soak is None:
            shutil.rmtree(folder, ignore_errors=True)
    report = soak.report()
    good = not report["complaints"] and not report["leaks"] and not report["wrong_bytes"]
    if good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"soak: the daemons' logs are in {folder}")
    print(json.dumps(report) if options.json else report["text"], flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
