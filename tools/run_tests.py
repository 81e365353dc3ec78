#!/usr/bin/env python3
"""Runs the test suites, quick ones first, and counts their cases. `./dev test` calls this.

The last line of the output is always `N passed, N failed`, summed over the suites; the exit status is 0 only when
nothing failed.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = ["unit", "conformance", "model", "integration", "package", "docker", "soak", "verbs", "asan", "tsan", "fuzz"]
# Every search begins with the same inputs, unless a seed is given; how far it comes is up to the machine.
FUZZ_SEED = 1
MINUTES = 1.0  # of the soak, and of each fuzz program

# What a test program prints for each of its cases: GoogleTest and Python's unittest.
PASSED = re.compile(r"^\[       OK \] |\.\.\. ok$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .* \(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)
# Of cases that cannot run here; unittest tells the reason on the line, GoogleTest the name of the case.
SKIPPED = re.compile(r"^\[  SKIPPED \] (.*) \(\d+ ms\)$|\.\.\. skipped (.*)$", re.MULTILINE)


class Result:
    """What one suite came to."""

    def __init__(self, suite):
        self.suite, self.passed, self.failed, self.seconds, self.notes = suite, 0, 0, 0.0, []

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)


def say(text):
    print(text, flush=True)


def build(preset, targets=()):
    """Builds through ./dev, which also installs what is missing; returns whether it worked."""
    return subprocess.run([ROOT / "dev", "build", "--preset", preset, *targets], cwd=ROOT, check=False).returncode == 0


def count_cases(result, junit_path):
    """Adds the cases that ctest's report holds: of one program many, as its output shows them."""
    for test in ElementTree.parse(junit_path).getroot().iter("testcase"):
        output = "".join(node.text or "" for node in test.iter("system-out"))
        passed, failed = len(PASSED.findall(output)), len(FAILED.findall(output))
        skipped = [name or reason for name, reason in SKIPPED.findall(output)]
        ended_well = test.get("status") == "run"
        if not ended_well and failed == 0:
            failed = 1  # crashed, timed out or could not start
        if ended_well and passed == 0 and not skipped:
            passed = 1
        if skipped:
            result.notes.append(f"{test.get('name')}: {len(skipped)} skipped: {skipped[0]}" + ", ..." * (len(skipped) > 1))
        result.passed += passed
        result.failed += failed
        if failed:
            result.notes.append(f"{test.get('name')}: {failed} failed")


def ctest(result, preset, label=None):
    """Builds `preset` and runs the tests under `label` (all of them without one)."""
    if not build(preset):
        result.fail(f"the {preset} build")
        return
    with tempfile.TemporaryDirectory(prefix="railsd-test-") as folder:
        junit = Path(folder) / "report.xml"
        command = ["ctest", "--test-dir", ROOT / "build" / preset, "--output-on-failure", "--no-tests=error",
                   "-j", str(os.cpu_count() or 1), "--output-junit", junit,
                   "--test-output-size-passed", "10000000", "--test-output-size-failed", "10000000"]
        if label:
            command += ["-L", f"^{label}$"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not junit.exists():
            result.fail("ctest found no tests")
            return
        count_cases(result, junit)
        if status != 0 and result.failed == 0:
            result.fail(f"ctest ended with {status}")


def fuzz_targets():
    """Names of the fuzz programs, each with its path and the folders of its stored corpus.

    A corpus lies beside the program's CMakeLists.txt: corpus/NAME (with or without fuzz_, _fuzz, _fuzzer) or, when the
    program is alone there, corpus.
    """
    found = {}
    for lists in sorted((ROOT / "tests" / "fuzz").rglob("CMakeLists.txt")):
        names = re.findall(r"^railsd_fuzzer\(\s*(\w+)", lists.read_text(), re.MULTILINE)
        for name in names:
            short = re.sub(r"^fuzz_|_fuzz(er)?$", "", name)
            corpus = lists.parent / "corpus"
            folders = [path for path in {corpus / name, corpus / short} if path.is_dir()]
            if not folders and len(names) == 1 and corpus.is_dir():
                folders = [corpus]
            found[name] = (ROOT / "build/fuzz" / lists.parent.relative_to(ROOT) / name, folders)
    return found


def fuzz_one(name, program, corpus, minutes, seed):
    """First the stored corpus alone, then new inputs for a while. Returns how many those were, and an empty text when
    nothing was found."""
    executions = 0
    with tempfile.TemporaryDirectory(prefix="railsd-fuzz-") as folder:
        for how in (["-runs=0"], [f"-seed={seed}", f"-max_total_time={max(1, round(60 * minutes))}"]):
            fresh = Path(folder) / "new"
            fresh.mkdir(exist_ok=True)
            run = subprocess.run(
                [program, *how, "-rss_limit_mb=2048", "-timeout=10", f"-artifact_prefix={folder}/", fresh, *corpus],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
            if run.returncode != 0:
                inputs = [f"{path.name}: {path.read_bytes()[:512].hex()}" for path in Path(folder).glob("*-*")
                          if path.is_file()]
                return executions, (f"{name} {how[0]} ended with {run.returncode}\n{run.stdout[-6000:]}\n" +
                                    "\n".join(inputs))
            done = re.search(r"^Done (\d+) runs", run.stdout, re.MULTILINE)
            executions = int(done.group(1)) if done else 0
    return executions, ""


def fuzz(result, options):
    """Every fuzz program for `options.minutes`, as many at once as there are processors."""
    targets = fuzz_targets()
    if not targets:
        result.fail("no fuzz targets")
        return
    if not build("fuzz", targets):
        result.fail("the fuzz build")
        return
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        seed = FUZZ_SEED if options.seed is None else options.seed
        runs = {name: pool.submit(fuzz_one, name, program, corpus, options.minutes, seed)
                for name, (program, corpus) in targets.items()}
    for name, run in runs.items():
        stored = sum(len(list(folder.iterdir())) for folder in targets[name][1])
        executions, trouble = run.result()
        if trouble:
            say(trouble)
            result.fail(f"fuzz {name}")
        elif not stored:
            say(f"{name}: no stored corpus under tests/fuzz")
            result.fail(f"fuzz {name}: no stored corpus")
        else:
            say(f"{name}: {stored} stored inputs and {executions} new ones (seed {seed}), nothing found")
            result.passed += 1


def model(result):
    """Checks every state of the models that tests/model lists."""
    if subprocess.run([ROOT / "dev", "setup", "model"], cwd=ROOT, check=False).returncode != 0:
        result.fail("the set-up of the model checker")
        return
    run = subprocess.run([sys.executable, ROOT / "tests/model/run.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                         check=False)
    say(run.stdout)
    result.passed, result.failed = len(PASSED.findall(run.stdout)), len(FAILED.findall(run.stdout))
    if run.returncode != 0 and result.failed == 0:
        result.fail(f"the models ended with {run.returncode}")


def verbs(result):
    """Boots the guest and runs what tests/verbs lists."""
    if subprocess.run([ROOT / "dev", "setup", "verbs"], cwd=ROOT, check=False).returncode != 0:
        result.fail("the set-up of the guest")
        return
    if not build("release"):
        result.fail("the release build")
        return
    with tempfile.TemporaryDirectory(prefix="railsd-test-") as folder:
        path = Path(folder) / "report.json"
        status = subprocess.run([sys.executable, ROOT / "tests/verbs/run.py", "--report", path], cwd=ROOT,
                                check=False).returncode
        report = json.loads(path.read_text()) if path.exists() else {"trouble": f"ended with {status}", "tests": []}
    for test in report["tests"]:
        result.passed += test["passed"]
        result.failed += test["failed"]
        if test["why"]:
            result.notes.append(f"{test['name']}: {test['failed']} failed, {test['why']}")
    if report["trouble"]:
        result.fail(report["trouble"])


def integration(result):
    """Real daemons; a real Prometheus, a browser and a terminal look at them, where they can be had."""
    if subprocess.run([ROOT / "dev", "setup", "test"], cwd=ROOT, check=False).returncode != 0:
        result.notes.append("prometheus, chromium or tmux could not be installed: the tests that need them are skipped")
    ctest(result, "release", "integration")


def python_tests(result, program):
    """A program of Python tests; what it prints is shown as it comes, and its cases are counted."""
    output = ""
    with subprocess.Popen([sys.executable, program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            output += line
    failed = len(FAILED.findall(output))
    result.passed += len(PASSED.findall(output))
    result.failed += failed
    if run.returncode != 0 and not failed:
        result.fail(f"{program.name} ended with {run.returncode}")


def package(result):
    """Makes the Debian packages, and tries them in clean roots and on a machine that boots."""
    if os.geteuid() != 0:
        result.notes.append("1 skipped: packages need root: root file systems, apt in them, a machine that boots")
        return
    if subprocess.run([ROOT / "dev", "setup", "package"], cwd=ROOT, check=False).returncode != 0:
        result.fail("the set-up of packages and roots")
        return
    if not build("release", ["rails_test_trainer"]):
        result.fail("the release build")
        return
    if subprocess.run([ROOT / "dev", "package"], cwd=ROOT, check=False).returncode != 0:
        result.fail("the packages")
        return
    for path in sorted((ROOT / "tests/package").glob("test_*.py")):
        python_tests(result, path)


def soak(result, options):
    """All faults at once against real daemons, for `options.minutes`."""
    if not build("release", ["railsd", "railsctl", "rails_test_trainer"]):
        result.fail("the release build")
        return
    command = [sys.executable, ROOT / "tests/soak/soak.py", "--minutes", str(options.minutes), "--json"]
    command += ["--seed", str(options.seed)] if options.seed is not None else []
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads(run.stdout) if run.stdout.strip() else {}
    if "skipped" in report:
        result.notes.append(f"1 skipped: {report['skipped']}")
        return
    say(run.stdout.strip() if options.json else report.get("text", ""))
    for what in report.get("leaks", []) + report.get("complaints", []):
        result.fail(what)
    if run.returncode != 0 and result.failed == 0:
        result.fail(f"the soak ended with {run.returncode}")
    if run.returncode == 0:
        result.passed = 1


def docker(result):
    """Nodes in containers, on an engine of their own where none runs."""
    if os.geteuid() != 0:
        result.notes.append("1 skipped: Docker needs root: an engine, namespaces, a root file system for the base")
        return
    if subprocess.run([ROOT / "dev", "setup", "docker"], cwd=ROOT, check=False).returncode != 0:
        result.fail("the set-up of Docker")
        return
    if (subprocess.run([ROOT / "dev", "package"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode != 0 or
            not build("release", ["railsctl", "railsd", "rails_test_trainer"])):
        result.fail("the packages")
        return
    python_tests(result, ROOT / "tests/docker/run.py")


def lint(result):
    """The quick lints; each counts as one case."""
    run = subprocess.run([ROOT / "dev", "lint", "--no-tidy"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    say(run.stdout)
    result.passed = len(re.findall(r"^ok    ", run.stdout, re.MULTILINE))
    result.failed = len(re.findall(r"^FAILED ", run.stdout, re.MULTILINE))
    result.notes += re.findall(r"^skipped .*$", run.stdout, re.MULTILINE)
    if run.returncode != 0 and result.failed == 0:
        result.fail(f"lint ended with {run.returncode}")


def run_suite(suite, options):
    """Runs one suite and returns its Result; an error of the suite's own machinery is a failure of the suite."""
    result = Result(suite)
    say(f"\n=== {suite}")
    start = time.monotonic()
    try:
        if suite == "fuzz":
            fuzz(result, options)
        elif suite == "verbs":
            verbs(result)
        elif suite == "model":
            model(result)
        elif suite == "soak":
            soak(result, options)
        elif suite == "docker":
            docker(result)
        elif suite == "lint":
            lint(result)
        elif suite == "integration":
            integration(result)
        elif suite == "package":
            package(result)
        elif suite in ("asan", "tsan"):
            ctest(result, suite)
        else:
            ctest(result, "release", suite)
    except (OSError, ValueError, ElementTree.ParseError, subprocess.SubprocessError) as error:
        result.fail(f"{suite} could not be run: {error}")
    result.seconds = time.monotonic() - start
    say(f"=== {suite}: {result.passed} passed, {result.failed} failed, {result.seconds:.0f} s")
    return result


def main():
    parser = argparse.ArgumentParser(prog="./dev test", description="Runs the test suites, quick ones first.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES + ["lint"]) + "; all but lint")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the soak, and of each fuzz program")
    parser.add_argument("--seed", type=int, help="of the soak, without it another one each time, which is said; of the fuzz programs, without it 1")
    parser.add_argument("--json", action="store_true", help="the soak's report as one JSON object")
    options = parser.parse_args()
    chosen = options.suites or SUITES
    for suite in chosen:
        if suite not in SUITES + ["lint"]:
            parser.error(f"no suite '{suite}': {', '.join(SUITES + ['lint'])}")
    results = [run_suite(suite, options) for suite in chosen]
    say(f"\n{'suite':<14}{'passed':>8}{'failed':>8}{'seconds':>9}")
    for result in results:
        say(f"{result.suite:<14}{result.passed:>8}{result.failed:>8}{result.seconds:>9.0f}")
    for result in results:
        for note in result.notes:
            say(f"{result.suite}: {note}")
    failed = sum(result.failed for result in results)
    say(f"{sum(result.passed for result in results)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
