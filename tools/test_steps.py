"""The suites of `./dev test` as steps for tools/scheduler.py: what each needs, what it runs, how its cases are counted."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from scheduler import Outcome, Step

ROOT = Path(__file__).resolve().parent.parent
DEV = ROOT / "dev"
SUITES = ["lint", "unit", "conformance", "model", "integration", "sim", "cuda", "python", "package", "docker", "soak", "verbs",
          "asan", "tsan", "fuzz"]
NEEDS_ROOT = {"package": "root file systems, apt in them, a machine that boots",
              "docker": "an engine, namespaces, a root file system for the base"}
# Every search begins with the same inputs, unless a seed is given. Its length depends on the machine.
FUZZ_SEED = 1
FUZZ_SECONDS, SOAK_MINUTES = 5, 1.0

SYSTEM_PYTHON = "/usr/bin/python3"  # the only one that sees Debian's pytest and NumPy

# The line that a test program prints for each of its cases: GoogleTest and Python's unittest.
# An "ok" stands alone where the case has printed something.
PASSED = re.compile(r"^\[       OK \] |(?:\.\.\. |^)ok$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .* \(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)
# Cases that cannot run here; unittest tells the reason on the line, GoogleTest the name of the case.
SKIPPED = re.compile(r"^\[  SKIPPED \] (.*) \(\d+ ms\)$|\.\.\. skipped (.*)$", re.MULTILINE)


def count_cases(name):
    """A judge of a program that prints its cases."""
    def judge(status, text):
        outcome = Outcome(len(PASSED.findall(text)), len(FAILED.findall(text)))
        skipped = [case or reason for case, reason in SKIPPED.findall(text)]
        if skipped:
            outcome.notes.append(f"{name}: {len(skipped)} skipped: {skipped[0]}" + ", ..." * (len(skipped) > 1))
        if outcome.failed:
            outcome.notes.append(f"{name}: {outcome.failed} failed")
        elif status != 0:
            outcome.fail(f"{name} ended with {status}")
        elif not outcome.passed and not skipped:
            outcome.fail(f"{name} has run no case")
        return outcome
    return judge


def count_summary(name):
    """A judge of a program whose last line is `N passed, N failed`."""
    def judge(status, text):
        counted = re.findall(r"^(\d+) passed, (\d+) failed$", text, re.MULTILINE)
        outcome = Outcome(*map(int, counted[-1])) if counted else Outcome()
        if outcome.failed:
            outcome.notes.append(f"{name}: {outcome.failed} failed")
        elif status != 0 or not outcome.passed:
            outcome.fail(f"{name} ended with {status}, {outcome.passed} passed")
        return outcome
    return judge


def count_pytest(status, text):
    """Judges pytest by its last line, such as `1 failed, 45 passed in 9.87s`."""
    last = text.rstrip().split("\n")[-1]
    counted = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    outcome = Outcome(counted.get("passed", 0), counted.get("failed", 0) + counted.get("error", 0))
    if counted.get("skipped"):
        outcome.notes.append(f"pytest: {counted['skipped']} skipped")
    if outcome.failed:
        outcome.notes.append(f"pytest: {outcome.failed} failed")
    elif status != 0 or not outcome.passed:
        outcome.fail(f"pytest ended with {status}, {outcome.passed} passed")
    return outcome


def must_succeed(name):
    """A judge of a step that is no test."""
    def judge(status, _):
        outcome = Outcome()
        if status != 0:
            outcome.fail(f"{name} ended with {status}")
        return outcome
    return judge


def preparation(name, command, **options):
    """A step that others need."""
    return Step(name, "preparation", command, must_succeed(name), **{"load": 0.2, "rank": 0, **options})


def build(preset, target=None, **options):
    """Compiles a preset; quick tests run meanwhile."""
    name = f"build {preset}" + (f" {target}" if target else "")
    return preparation(name, [DEV, "build", "--preset", preset, *([target] if target else [])], load=0.0,
                       background=True, locks=frozenset({"compilers", f"build/{preset}"}), timeout_seconds=5400, **options)


def ctest_steps(preset, suite, label, after):
    """The tests that a built preset has under a label (all of them without one)."""
    command = ["ctest", "--test-dir", ROOT / "build" / preset, "--show-only=json-v1"] + (["-L", f"^{label}$"] if label else [])
    listed = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["tests"]
    if not listed:
        return [Step(f"{suite} tests", suite, ["false"], must_succeed(f"{preset} has no test {label or ''}"))]
    steps = []
    for test in listed:
        properties = {entry["name"]: entry["value"] for entry in test["properties"]}
        labels = properties.get("LABELS", [])
        waits = bool({"integration", "cuda", "waits"} & set(labels))
        steps.append(Step(
            f"{suite} {test['name'].removeprefix('integration_')}", suite, test["command"], count_cases(test["name"]),
            after=after, load=0.4 if waits else 1.0, locks=frozenset(properties.get("RESOURCE_LOCK", [])),
            rank=30 if "RESOURCE_LOCK" in properties else 50, timeout_seconds=properties.get("TIMEOUT", 600)))
    return steps


def fuzz_preset(options):
    """The preset of the fuzz programs. A long search uses a build of its own, which is optimized and tells libFuzzer
    more. The few seconds of a run of all suites use the preset asan."""
    return "asan" if options.minutes is None else "fuzz"


def fuzz_targets(preset):
    """Names of the fuzz programs, each with its path and the folders of its stored corpus.

    A corpus lies beside the program's CMakeLists.txt: corpus/NAME (with or without _fuzzer) or, when the program is
    alone there, corpus.
    """
    found = {}
    for lists in sorted((ROOT / "tests/fuzz").rglob("CMakeLists.txt")):
        names = re.findall(r"^railsd_fuzzer\(\s*(\w+)", lists.read_text(), re.MULTILINE)
        for name in names:
            corpus = lists.parent / "corpus"
            folders = [path for path in (corpus / name, corpus / name.removesuffix("_fuzzer")) if path.is_dir()]
            if not folders and len(names) == 1 and corpus.is_dir():
                folders = [corpus]
            found[name] = (ROOT / "build" / preset / lists.parent.relative_to(ROOT) / name, folders)
    return found


def fuzz_steps(options):
    seconds = FUZZ_SECONDS if options.minutes is None else max(1, round(60 * options.minutes))
    seed = FUZZ_SEED if options.seed is None else options.seed
    targets = fuzz_targets(fuzz_preset(options))
    if not targets:
        raise LookupError("no railsd_fuzzer() under tests/fuzz")
    return [Step(f"fuzz {name}", "fuzz", [sys.executable, ROOT / "tools/fuzz_one.py", program, *corpus, "--seconds", seconds,
                                          "--seed", seed],
                 count_cases(name), timeout_seconds=seconds + 600)
            for name, (program, corpus) in targets.items()]


def soak_step(options):
    def judge(status, text):
        outcome = Outcome(passed=int(status == 0))
        skipped = re.search(r'^(?:skipped: |\{"skipped": ")(.*?)(?:"\})?$', text, re.MULTILINE)
        if skipped and status == 0:
            outcome.passed = 0
            outcome.notes.append(f"1 skipped: {skipped[1]}")
        elif status != 0:
            outcome.fail(f"the soak ended with {status}")
        return outcome
    minutes = SOAK_MINUTES if options.minutes is None else options.minutes
    command = [sys.executable, ROOT / "tests/soak/soak.py", "--minutes", minutes] + ["--json"] * options.json
    command += ["--seed", options.seed] if options.seed is not None else []
    return Step("soak", "soak", command, judge, after=("build release programs",), load=0.5, rank=20,
                locks=frozenset({"fabric"}), live=True, timeout_seconds=60 * minutes + 1800)


def lint_step():
    def judge(status, text):
        outcome = Outcome(len(re.findall(r"^ok    ", text, re.MULTILINE)),
                          len(re.findall(r"^FAILED ", text, re.MULTILINE)),
                          re.findall(r"^skipped .*$", text, re.MULTILINE))
        if status != 0 and not outcome.failed:
            outcome.fail(f"lint ended with {status}")
        return outcome
    return Step("lint", "lint", [DEV, "lint", "--no-tidy"], judge, after=("setup lint",), live=True)


def python_step(suite, path, after, **options):
    """A program of Python tests."""
    name = suite if path.stem == "run" else f"{suite} {path.stem}"
    return Step(name, suite, [sys.executable, path], count_cases(name), after=after, **options)


def steps_of(suites, options):
    """The steps of the chosen suites with everything that they need, and notes on suites that cannot run here."""
    notes = [f"{suite}: 1 skipped: it needs root: {NEEDS_ROOT[suite]}" for suite in suites
             if suite in NEEDS_ROOT and os.geteuid() != 0]
    chosen = {suite for suite in suites if suite not in NEEDS_ROOT or os.geteuid() == 0}
    steps = []
    # The packages that compilers need come first, because builds take longest.
    for name, users in (("build", chosen - {"lint", "model"}), ("fuzz", {"asan", "fuzz"}), ("verbs", {"verbs"}),
                        ("python", {"python"}), ("package", {"package", "docker"}), ("docker", {"docker"}),
                        ("test", {"integration", "sim", "cuda", "asan", "tsan"}), ("model", {"model"}), ("lint", {"lint"})):
        if users & chosen:
            steps.append(preparation(f"setup {name}", [DEV, "setup", name], locks=frozenset({"apt"})))
    if chosen & {"integration", "sim", "cuda", "python", "package", "docker", "soak", "verbs"}:
        steps.append(build("release", "programs", after=("setup build",),
                           follow=lambda: [step for suite in ("integration", "cuda") if suite in chosen
                                           for step in ctest_steps("release", suite, suite, ("setup test",))]))
    for suite, needs in (("unit", ()), ("conformance", ()), ("sim", ("setup test", "build release programs"))):
        if suite in chosen:
            steps.append(build("release", f"{suite}_tests", rank=1, after=("setup build",),
                               follow=lambda suite=suite, needs=needs: ctest_steps("release", suite, suite, needs)))
    if "asan" in chosen:
        steps.append(build("asan", after=("setup build", "setup fuzz"), rank=2,
                           follow=lambda: ctest_steps("asan", "asan", None, ("setup test",))))
    if "fuzz" in chosen:
        steps.append(build(fuzz_preset(options), "fuzzers", after=("setup build", "setup fuzz"), rank=2,
                           follow=lambda: fuzz_steps(options)))
    if "tsan" in chosen:
        steps.append(build("tsan", after=("setup build",), rank=3,
                           follow=lambda: ctest_steps("tsan", "tsan", None, ("setup test",))))
    if chosen.issuperset(SUITES):
        steps.append(build("release", rank=4, after=("setup build",)))  # benchmarks, which no suite runs
    if "lint" in chosen:
        steps.append(lint_step())
    if "model" in chosen:
        steps.append(Step("model", "model", [sys.executable, ROOT / "tests/model/run.py"], count_cases("model"),
                          after=("setup model",)))
    if "verbs" in chosen:
        steps.append(preparation("guest", [sys.executable, ROOT / "tests/verbs/vm.py"], after=("setup verbs",)))
        steps.append(Step("verbs", "verbs", [sys.executable, ROOT / "tests/verbs/run.py"], count_summary("verbs"),
                          after=("guest", "build release programs"), rank=10, live=True, timeout_seconds=5400))
    if "python" in chosen:
        steps.append(Step("python", "python", [SYSTEM_PYTHON, "-m", "pytest", "-p", "no:cacheprovider", ROOT / "tests/python"],
                          count_pytest, after=("setup python", "build release programs"), load=0.4, rank=40))
    if "soak" in chosen:
        steps.append(soak_step(options))
    if chosen & {"package", "docker"}:
        steps.append(preparation("debian root", [sys.executable, ROOT / "tools/debian_root.py"],
                                 after=("setup package",)))
        steps.append(preparation("packages", [DEV, "package"], after=("setup package", "build release programs"), load=1.0,
                                 locks=frozenset({"build/release"})))
    if "package" in chosen:
        steps += [python_step("package", path, ("packages", "debian root"), rank=20)
                  for path in sorted((ROOT / "tests/package").glob("test_*.py"))]
    if "docker" in chosen:
        steps.append(python_step("docker", ROOT / "tests/docker/run.py", ("packages", "debian root", "setup docker"), rank=20))
    return steps, notes
