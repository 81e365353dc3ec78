"""The cost of links between daemons: time, system calls and instructions of a message, and many links of one daemon."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from common import BUILD, BenchError, Result, median, progress

PROGRAM = BUILD / "bench/links/bench_links"
MESSAGES, RUNS = 20_000, 3
LINKS, RATE, SECONDS = 127, 100, 5
# Messages of two runs. The difference of the runs excludes start and end.
FEW, MANY = 2_000, 10_000
WAYS = ["bare", "plain", "tls"]


def ran(command, **how):
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                         **how)
    if run.returncode != 0:
        raise BenchError(f"{' '.join(map(str, command))} ended with {run.returncode}: {run.stderr.strip()[-500:]}")
    return run


def round_trips(repeat, processors):
    """The medians of p50, of p99 and of the ratio of p50 to the bare sockets' p50, for each way."""
    runs = [json.loads(ran([PROGRAM, "round_trips", MESSAGES, *WAYS],
                           preexec_fn=lambda: os.sched_setaffinity(0, processors)).stdout) for _ in range(repeat)]
    out = {way: {key: median([run[way][key] for run in runs]) for key in ("p50_us", "p99_us", "ratio")} for way in WAYS}
    progress(f"{len(processors)} processors: " + ", ".join(
        f"{way} {values['p50_us']:.1f} us ({values['ratio']:.2f} x)" for way, values in out.items()))
    return out


def system_calls(way):
    """System calls of a message, at both ends together."""
    counts = []
    for messages in (FEW, MANY):
        with tempfile.NamedTemporaryFile("r") as table:
            ran(["strace", "-f", "-c", "-U", "calls,name", "-o", table.name, PROGRAM, "round_trips", messages, way])
            rows = re.findall(r"^\s*(\d+) +(\w+)$", table.read(), re.MULTILINE)
        counts.append(sum(int(count) for count, name in rows if name != "total"))
    return (counts[1] - counts[0]) / (MANY - FEW)


def instructions(way):
    """Instructions of a message in user space, at both ends together."""
    counts = []
    for messages in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "counts"
            ran(["valgrind", "--tool=callgrind", f"--callgrind-out-file={file}", PROGRAM, "round_trips", messages, way])
            counts.append(int(re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE).group(1)))
    return (counts[1] - counts[0]) / (MANY - FEW)


def many(way):
    report = json.loads(ran([PROGRAM, "many", LINKS, RATE, SECONDS, way]).stdout)
    # A slow machine sends less, so its hub has less work.
    if report["loaded"]["messages_in_per_second"] < 0.9 * LINKS * RATE:
        raise BenchError(f"{report['loaded']['messages_in_per_second']:.0f} messages came in a second instead of {LINKS * RATE}")
    return report


def percent(phase):
    return phase["user_percent"] + phase["system_percent"]


def results_of_many(way, report):
    empty, idle, loaded = report["empty"], report["idle"], report["loaded"]
    more = max(idle["resident_mb"], loaded["resident_mb"]) - empty["resident_mb"]
    return [
        Result(f"links.{way}.memory_of_{LINKS}", more, "MB", 100, f"resident, above the {empty['resident_mb']:.0f} MB of a process "
               f"with a hub without links; {idle['resident_mb'] - empty['resident_mb']:.1f} MB before the messages"),
        Result(f"links.{way}.idle_of_{LINKS}", percent(idle), "% of a core", None, f"{percent(empty):.2f} without links"),
        Result(f"links.{way}.loaded_of_{LINKS}", percent(loaded), "% of a core", None,
               f"{loaded['messages_in_per_second']:.0f} messages a second in and as many answers out, "
               f"{loaded['user_percent']:.0f} % of it outside the kernel"),
    ]


def measure(options):
    repeat = options.repeat or RUNS
    processors = os.sched_getaffinity(0)
    one, free = round_trips(repeat, {max(processors)}), round_trips(repeat, processors)
    how = (f"p50 of a message of 200 bytes from engine to engine over that of bare sockets with as many wakes, in turns; "
           f"{MESSAGES} messages, all threads on one processor; median of {repeat} runs")
    results = [
        Result("links.plain.over_bare", one["plain"]["ratio"], "x", 1.5, how),
        Result("links.tls.over_bare", one["tls"]["ratio"], "x", None, "the same with mutual TLS"),
        *[Result(f"links.{way}.over_bare_anywhere", free[way]["ratio"], "x", None, "on whatever processors the kernel chooses")
          for way in WAYS[1:]],
    ]
    for way in WAYS:
        results.append(Result(f"links.{way}.p50", one[way]["p50_us"], "us", None, "half a round trip, on one processor"))
        results.append(Result(f"links.{way}.p99", one[way]["p99_us"], "us", None, "the same"))
    for way in WAYS:
        results.append(Result(f"links.{way}.system_calls", system_calls(way), "", None, "calls for a message, both ends, under strace"))
        results.append(Result(f"links.{way}.instructions", instructions(way), "", None,
                              "instructions for a message, both ends, outside the kernel, under callgrind"))
    for way in WAYS[1:]:
        progress(f"{LINKS} links, {way}")
        results += results_of_many(way, many(way))
    return results
