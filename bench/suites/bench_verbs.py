"""RDMA rails, on Soft-RoCE in a guest (tests/verbs). Only ratios within one boot, because its speed means nothing."""

import json
import sys
import tempfile
from pathlib import Path

from common import BUILD, ROOT, BenchError, Result, median, progress

sys.path.insert(0, str(ROOT / "tests/verbs"))

import vm  # noqa: E402  (found by the line above)

RUNS = 3
GIB = 1 << 30


def run_guest(repeat, program="bench_verbs.py"):
    """Boots the guest, runs one of its programs and returns the program's measurements."""
    with tempfile.TemporaryDirectory(prefix="railsd-bench-") as folder:
        out = Path(folder)
        (out / "repeat").write_text(str(repeat))
        try:
            machine = vm.Vm(out, {"BUILD": BUILD, "TESTS": f"{program}:{600 + 300 * repeat}"})
        except vm.VmError as error:
            raise BenchError(str(error)) from error
        for line in machine.lines(900 + 300 * repeat):
            if vm.MARK in line or line.startswith("vm: "):
                progress(line)
        log = out / f"{program}.log"
        text = log.read_text(errors="replace") if log.exists() else "no answer from the guest"
        for line in text.splitlines():
            progress(line)
        if not (out / "bench.json").exists():
            raise BenchError(f"the guest measured nothing: {text[-2000:]}")
        return json.loads((out / "bench.json").read_text())


def busy_rows(busy, runs):
    """Cost and benefit of busy polling for `busy`, over four rails."""
    per_gib = {key: median([run[key] / run["tx_payload_bytes"] * GIB for run in runs])
               for key in ("rx_system_calls", "cpu_seconds", "seconds")}
    return [
        Result(f"verbs.busy_poll_{busy}.sleeps", per_gib["rx_system_calls"], "per GiB", None,
               f"times that a rail's thread armed its completion queue and slept, busy_poll {busy}"),
        Result(f"verbs.busy_poll_{busy}.cpu", per_gib["cpu_seconds"], "s per GiB", None,
               "processor time of both daemons, sent and received"),
        Result(f"verbs.busy_poll_{busy}.time", per_gib["seconds"], "s per GiB", None, "time of the jobs"),
    ]


def measure(options):
    found = run_guest(options.repeat or RUNS)
    bare = {rails: median(found["bare"][rails]) for rails in ("1", "4")}
    ours = {rails: median(found["daemons"][rails]) for rails in ("1", "4")}
    counted, shaped, uneven = found["busy"]["0s"][-1], found["shaped"], found["uneven"]
    wide = found["wide"]
    bare_ratio, our_ratio = bare["4"] / bare["1"], ours["4"] / ours["1"]
    gib = counted["tx_payload_bytes"] / GIB
    where = f"two nodes on Soft-RoCE in one guest with two emulated processors, median of {len(found['daemons']['1'])} runs"
    return [
        Result("verbs.four_over_one", our_ratio, "", None, f"speed of four rails over one, unshaped; {where}"),
        Result("verbs.bare.four_over_one", bare_ratio, "", None, "the same of a bare loop of RDMA writes"),
        Result("verbs.scaling_to_bare_loop", our_ratio / bare_ratio, "", 0.9, "the first over the second", True),
        Result("verbs.speed_to_bare_loop", ours["4"] / bare["4"], "", None,
               f"four rails: {ours['4']:.1f} MB/s of the daemons over {bare['4']:.1f} MB/s of the bare loop"),
        Result("verbs.shaped", median(shaped["ratios"]), "x bound", 1.08,
               f"mixtral, 256 MiB a rank, 4 rails at 50 Mbit/s; payload over raw line rate; median of "
               f"{len(shaped['ratios'])} steps ({min(shaped['ratios']):.3f} to {max(shaped['ratios']):.3f}), "
               f"{shaped['drops']} packets dropped, every byte verified"),
        Result("verbs.shaped.tx_max_over_mean", shaped["balance"]["tx_max_over_mean"], "", None,
               "busiest sending rail of a node over its rails' mean, all steps"),
        Result("verbs.shaped.rx_max_over_mean", shaped["balance"]["rx_max_over_mean"], "", None, "the same, receiving"),
        Result("verbs.shaped.uneven", median(uneven["ratios"]), "x bound", None,
               f"the same with one of the rails at 25 Mbit/s ({min(uneven['ratios']):.3f} to "
               f"{max(uneven['ratios']):.3f}), {uneven['drops']} packets dropped"),
        Result("verbs.completions", counted["completions"] / gib, "per GiB", None,
               f"polled, with 4 MiB under way to a peer on a rail: {counted['completions']} for "
               f"{counted['tx_chunks']} chunks and {counted['work_requests']} work requests"),
        Result("verbs.completions_16", wide["completions"] / wide["tx_payload_bytes"] * GIB, "per GiB", None,
               f"the same with 16 MiB under way: {wide['completions']} for {wide['tx_chunks']} chunks"),
        Result("verbs.chunks", counted["tx_chunks"] / gib, "per GiB", None, "chunks in the same run"),
        Result("verbs.fences", counted["tx_fences"] / counted["jobs"], "per job", 8,
               "two ordered pairs of ranks on different nodes x four rails"),
    ] + [row for busy, runs in found["busy"].items() for row in busy_rows(busy, runs)]
