"""The cost of a link that goes down for a running job over RDMA verbs, on Soft-RoCE in a guest (tests/verbs). For
information only: it mostly measures the two emulated processors."""

from bench_verbs import run_guest
from common import Result, median, progress

RUNS = 20


def measure(options):
    found = run_guest(options.repeat or RUNS, "bench_link_down.py")
    added = sorted(1e3 * seconds for seconds in found["added"])
    progress("own link down, added ms: " + " ".join(f"{1e3 * seconds:.0f}" for seconds in found["added"]))
    how = (f"{found['bytes'] >> 20} MiB each way between two nodes x 4 rails at 12 Mbit/s on Soft-RoCE "
           f"({found['undisturbed']:.3f} s undisturbed), one end's interface switched off in mid-job; over 3 rails from "
           f"that moment; of {len(added)}, work moved off the rail in {found['rehomed']}, every byte compared")
    return [Result("verbs_faults.link_down.added_median", median(added), "ms", None, "median: " + how),
            Result("verbs_faults.link_down.added_max", added[-1], "ms", None, "the longest of the same"),
            Result("verbs_faults.link_down.acted_max", 1e3 * max(found["acted"]), "ms", None,
                   f"from the device's report to the engine's knowing, the longest of {len(found['acted'])} at both ends; "
                   f"median {1e3 * median(found['acted']):.1f} ms"),
            Result("verbs_faults.undisturbed_spread", 1e3 * found["spread"], "ms", None,
                   "between the quickest and the slowest of the jobs without a fault")]
