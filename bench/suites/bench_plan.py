"""Planning on a Mixtral routing trace, without a network: balance of the NICs and time over the bound."""

import json
import subprocess

from common import BUILD, ROOT, BenchError, Result, progress

RAILS = 8


def trace_of(options):
    """The trace to plan (given, found beside the project, or generated), and a description of it."""
    if options.trace:
        return [options.trace], "the trace that was given"
    found = sorted((ROOT.parent / "shared/workloads").glob("*.csv.gz"))
    if found:
        return [found[0]], f"the trace {found[0].name}"
    return ["--workload", "mixtral", "--nodes", 4, "--steps", 100], "a workload drawn from Mixtral's statistics"


def measure(options):
    source, called = trace_of(options)
    command = [BUILD / "sim/railsctl-plan", *source, "--rails", RAILS, "--json"]
    progress(" ".join(map(str, command)))
    run = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         check=False)
    if run.returncode != 0:
        raise BenchError(f"railsctl-plan ended with {run.returncode}: {run.stderr.strip()}")
    report = json.loads(run.stdout)
    policies = {policy["policy"]: policy["per_exchange"] for policy in report["policies"]}
    how = (f"{called}, {report['nodes']} nodes x {RAILS} rails, {report['exchanges']} exchanges, lpt; the worst exchange's "
           "worst node")
    results = [
        Result("plan.tx_max_over_mean", policies["lpt"]["tx_max_over_mean"]["worst"], "", 1.01, how),
        Result("plan.rx_max_over_mean", policies["lpt"]["rx_max_over_mean"]["worst"], "", 1.01, how),
        Result("plan.completion_over_bound", policies["lpt"]["completion_over_bound"]["worst"], "", 1.005, how),
    ]
    for name in ("pinned", "aligned", "ecmp", "round_robin", "lpt_flow"):
        results.append(Result(f"plan.{name}.completion_over_bound", policies[name]["completion_over_bound"]["mean"], "",
                              None, "mean over the exchanges, for comparison"))
    return results
