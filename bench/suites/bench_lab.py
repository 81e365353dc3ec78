"""Completion time over the physical bound on an emulated fabric of 4 nodes x 4 rails at 200 Mbit/s. Needs root."""

from cluster import Cluster, Settings
from common import Result, median, progress
from lab import GOODPUT, Lab

NODES, RAILS, RATE = 4, 4, "200mbit"
RUNS = 10
PER_RANK = "16MiB"
SMALL = "1MiB"
SLOW_RAIL, HALF_RATE, SLOW_WARM_UP = 2, "100mbit", 4  # steps until plans use the measured speeds of rails


def runs(name, latency, arguments, repeat, target, what, per_rank=PER_RANK, slow=False):
    """Replays `repeat` steps of a workload on a new fabric. Returns the median of their time over the bound. `slow`:
    one rail of every node has half of its configured speed, and the bound uses the real speeds of the rails."""
    with Lab(NODES, RAILS, RATE, latency) as fabric:
        with Cluster(Settings(NODES, RAILS, RATE), addresses=fabric) as cluster:
            warm_up = ["--warmup", SLOW_WARM_UP] if slow else []
            if slow:
                fabric.rail_rate(SLOW_RAIL, HALF_RATE)
            report = cluster.replay("--verify", "--bytes-per-rank", per_rank, "--steps", repeat, *warm_up, *arguments)
        drops = fabric.drops()
    left = (RAILS - 0.5) / RAILS if slow else 1
    ratios = [step["ratio_to_bound"] * left for step in report["per_step"]]
    progress(f"{name}: " + " ".join(f"{ratio:.3f}" for ratio in ratios) + f"; {drops} packets dropped")
    how = (f"{what}, {per_rank} a rank, {NODES} nodes x {RAILS} rails at 200 Mbit/s, tbf latency {latency}; payload over "
           f"raw line rate; median of {repeat} steps ({min(ratios):.3f} to {max(ratios):.3f}), every byte verified")
    return [
        Result(f"lab.{name}", median(ratios), "x bound", target, how),
        Result(f"lab.{name}.over_goodput_bound", median(ratios) * GOODPUT, "x bound", None,
               "the same, over what TCP can carry at this MTU (99.3 % of the line rate)"),
        Result(f"lab.{name}.tx_max_over_mean", report["balance"]["tx_max_over_mean"], "", None,
               f"busiest sending rail of a node over its rails' mean, all steps; {drops} packets dropped by the shapers"),
        Result(f"lab.{name}.rx_max_over_mean", report["balance"]["rx_max_over_mean"], "", None, "the same, receiving"),
    ]


def measure(options):
    repeat = options.repeat or RUNS
    mixtral = [options.trace] if options.trace else ["--workload", "mixtral"]
    four = ["--ranks-per-node", 4]
    return (runs("mixtral", "100ms", mixtral, repeat, 1.04, "Mixtral replay, 1 rank a node") +
            runs("uniform_4_ranks", "400ms", ["--workload", "uniform", *four], repeat, 1.045, "uniform, 4 ranks a node") +
            runs("zipf_4_ranks", "400ms", ["--workload", "zipf", "--zipf-exponent", 1.2, *four], repeat, 1.02,
                 "Zipf 1.2, 4 ranks a node") +
            runs("uniform_1_rank", "100ms", ["--workload", "uniform"], repeat, 1.05, "uniform, 1 rank a node") +
            runs("half_speed_uniform", "400ms", ["--workload", "uniform", *four], repeat, 1.08,
                 "uniform, 4 ranks a node, one rail of each node at half speed", slow=True) +
            runs("half_speed_zipf", "400ms", ["--workload", "zipf", "--zipf-exponent", 1.2, *four], repeat, 1.08,
                 "Zipf 1.2, 4 ranks a node, one rail of each node at half speed", slow=True) +
            runs("uniform_1_rank_small", "100ms", ["--workload", "uniform"], 3 * repeat, 1.20, "uniform, 1 rank a node",
                 SMALL))
