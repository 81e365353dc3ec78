"""Completion time over the physical bound on an emulated fabric of 4 nodes x 4 rails at 200 Mbit/s. Needs root."""

from cluster import Cluster, Settings
from common import Result, median, progress
from lab import GOODPUT, Lab

NODES, RAILS, RATE = 4, 4, "200mbit"
RUNS = 10
PER_RANK = "16MiB"


def runs(name, latency, arguments, repeat, target, what):
    """Replays a workload `repeat` times on a fresh fabric; the median of time over bound."""
    ratios, balances = [], []
    with Lab(NODES, RAILS, RATE, latency) as fabric:
        with Cluster(Settings(NODES, RAILS, RATE), addresses=fabric) as cluster:
            for number in range(repeat):
                report = cluster.replay("--verify", "--bytes-per-rank", PER_RANK, *arguments, timeout=600)
                ratios.append(report["ratio_to_bound"])
                balances.append(max(report["balance"]["tx_max_over_mean"], report["balance"]["rx_max_over_mean"]))
                progress(f"{name} {number + 1} of {repeat}: {ratios[-1]:.3f} over the bound, max/mean "
                         f"{balances[-1]:.3f}")
        drops = fabric.drops()
    how = (f"{what}, {PER_RANK} a rank, {NODES} nodes x {RAILS} rails at 200 Mbit/s, tbf latency {latency}; payload "
           f"over raw line rate; median of {repeat} runs ({min(ratios):.3f} to {max(ratios):.3f}), every byte verified")
    return [
        Result(f"lab.{name}", median(ratios), "x bound", target, how),
        Result(f"lab.{name}.over_goodput_bound", median(ratios) * GOODPUT, "x bound", None,
               "the same, over what TCP can carry at this MTU (99.3 % of the line rate)"),
        Result(f"lab.{name}.rail_max_over_mean", median(balances), "", None, f"busiest rail over the mean; {drops} packets "
               "dropped by the shapers in all runs"),
    ]


def measure(options):
    repeat = options.repeat or RUNS
    mixtral = [options.trace] if options.trace else ["--workload", "mixtral"]
    return (runs("mixtral", "100ms", [*mixtral, "--steps", 1], repeat, 1.08, "Mixtral replay, 1 rank a node") +
            runs("uniform_4_ranks", "400ms", ["--workload", "uniform", "--ranks-per-node", 4, "--steps", 1], repeat, 1.06,
                 "uniform, 4 ranks a node") +
            runs("zipf_4_ranks", "400ms", ["--workload", "zipf", "--zipf", 1.2, "--ranks-per-node", 4, "--steps", 1],
                 repeat, 1.06, "Zipf 1.2, 4 ranks a node"))
