"""The cost of scrapes: one scrape of a large node, and the effect of scrapes on the time of jobs. The second part runs
on the emulated fabric and needs root."""

import json
import statistics
import subprocess

from bench_faults import FORGETFUL, NODES, RAILS, Pair
from cluster import Cluster, Settings
from common import BUILD, BenchError, Helper, Result, median, progress
from lab import Lab

ROUNDS, JOBS, SCRAPES = 10, 10, 100  # rounds; in each, jobs of a block, and scrapes of both nodes together
# Reads "COUNT PAUSE" lines. Scrapes the daemons in turn COUNT times and prints how many answers were complete.
SCRAPER = """
import sys, time, urllib.request
for line in sys.stdin:
    count, pause = line.split()
    whole = 0
    for number in range(int(count)):
        with urllib.request.urlopen(sys.argv[1 + number % (len(sys.argv) - 1)], timeout=300) as answer:
            whole += b"\\nrailsd_scrape_failed 0\\n" in answer.read()
        time.sleep(float(pause))
    print(whole, flush=True)
"""


def one_scrape(repeat):
    program = BUILD / "bench/scrape/bench_scrape"
    run = subprocess.run([program, str(repeat)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise BenchError(f"{program.name} ended with {run.returncode}: {run.stderr.strip()}")
    report = json.loads(run.stdout)
    how = (f"GET over loopback of a node with 8 rails and 64 peers, its engine made up; the daemon's own HTTP port and "
           f"exposition; median of {repeat}")
    return [
        Result("scrape.time", report["metrics"]["milliseconds"], "ms", 10.0, how),
        Result("scrape.time_gzip", report["metrics_gzip"]["milliseconds"], "ms", 10.0, "the same, as Prometheus asks"),
        Result("scrape.size", report["metrics"]["bytes"] / 1e6, "MB", 1.0,
               f"not compressed; {report['metrics_gzip']['bytes']} bytes compressed"),
        Result("scrape.status_time", report["status"]["milliseconds"], "ms", None, "/api/v1/status of the same node"),
    ]


class Scraper(Helper):
    """A process in the fabric."""

    def __init__(self, lab):
        super().__init__(lab.command(0), SCRAPER, *(f"http://{lab.metrics(node)}/metrics" for node in range(NODES)))

    def start(self, count, pause):
        self.say(f"{count} {pause}")

    def finish(self, count):
        if self.answer() != str(count):
            raise BenchError("a scrape failed under load")


def block(pair, scraper, count):
    """Median time of JOBS jobs, with `count` scrapes spread over them."""
    pause = JOBS * pair.usual / SCRAPES * 0.7  # the scrapes themselves take the other 0.3
    scraper.start(count, pause)
    times = [pair.job() for _ in range(JOBS)]
    scraper.finish(count)
    return median(times)


def under_load(rounds):
    ratios, noise = [], []
    with Lab(NODES, RAILS, "200mbit") as lab, \
            Cluster(Settings(NODES, RAILS, "200mbit", sections=FORGETFUL), addresses=lab) as cluster, \
            Scraper(lab) as scraper:
        pair = Pair(cluster)
        try:
            pair.usual = median([pair.job() for _ in range(JOBS)])
            for number in range(rounds):
                # Two blocks without scrapes: around the block with scrapes, and in the next round after it.
                blocks = [0, SCRAPES, 0] if number % 2 else [SCRAPES, 0, 0]
                times = [(count, block(pair, scraper, count)) for count in blocks]
                quiet = [time for count, time in times if not count]
                ratios += [time / statistics.mean(quiet) for count, time in times if count]
                noise.append(abs(quiet[0] / quiet[1] - 1))
                progress(f"round {number + 1} of {rounds}: with scrapes {ratios[-1]:.4f} x, without {1 + noise[-1]:.4f} x")
        finally:
            pair.close()
    return [
        Result("scrape.under_load", median(ratios), "x", round(1 + max(noise), 4),
               f"median job time with {SCRAPES} scrapes of both nodes in {JOBS} jobs over without, median of {rounds} "
               f"rounds ({rounds * SCRAPES} scrapes), {NODES} nodes x {RAILS} rails at 200 Mbit/s; the target is the most "
               "that two blocks without scrapes differed in the same run"),
        Result("scrape.under_load_noise", 1 + median(noise), "x", None, "two blocks without scrapes, median"),
    ]


def measure(options):
    return one_scrape(200) + under_load(options.repeat or ROUNDS)
