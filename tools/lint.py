#!/usr/bin/env python3
"""Checks the sources: format, scripts, protos, rooms, sizes, sentences, and clang-tidy. `./dev lint` calls this."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import api_lint
import cxx_lint
import dashboard_lint
import dashboard_types
import kubernetes_lint
import npm
import proto_lint
import sentences
import service_lint

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
CLANG_FORMAT = 14  # that of Debian 12; each release breaks some lines differently
CXX = {".cc", ".h"}
TEXT = CXX | {".py", ".sh", ".proto", ".cmake", ".md", ".yaml", ".yml"}

# Includes that are not allowed; the architecture's table of rooms in regular expressions.
ROOMS = [
    ("agent/", r"grpc|google/protobuf|prometheus|\.pb\.h|^(rails|daemon|client)/", "the data plane knows sockets only"),
    ("agent/plan/", r"^agent/(?!base/|plan/)|^(sys/|netinet/|unistd)", "planning is pure"),
    ("common/", r"^(agent|daemon|client|sim)/|grpc|infiniband/|prometheus", "it is under daemon and clients"),
    ("client/", r"^(agent|daemon)/|infiniband/|prometheus", "clients know the protos only"),
    ("daemon/", r"infiniband/|rdma/|^(client|sim)/", "the daemon knows the agent's interfaces only"),
    ("sim/", r"^(daemon)/|^agent/(transport|memory|control)/|^agent/rails/(?!rail_scheduler|rail_progress)|infiniband/|grpc",
     "the simulator knows planning and the scheduler of a rail only"),
]

# The folder where waits must end by the steady clock, and not by the wall clock, which people set.
STEADY_ROOM = "client/src/"
WALL_CLOCK = r"absl::Now\(|system_clock|ToChronoTime|\b(Await|Wait)With(Timeout|Deadline)\("


def tracked():
    """Files of the project: those that git lists or, without a checkout, all that are not built."""
    git = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, check=False)
    if git.returncode == 0:
        names = git.stdout.split("\n")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    paths = [Path(name) for name in names if name]
    return sorted(path for path in paths
                  if (ROOT / path).is_file() and not {"build", ".git", "__pycache__"} & set(path.parts))


def read(path):
    return (ROOT / path).read_text(errors="replace")


class Skipped(Exception):
    """The reason why a check cannot run here."""


def check_format(files):
    version = subprocess.run(["clang-format", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if not re.search(rf"version {CLANG_FORMAT}\.", version):
        raise Skipped(f"the sources are formatted by clang-format {CLANG_FORMAT}, this is {version}")
    sources = [path for path in files if path.suffix in CXX]
    run = subprocess.run(["clang-format", "--dry-run", "-Werror", *sources], cwd=ROOT, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)
    return run.stdout.splitlines() if run.returncode else []


def check_scripts(files):
    scripts = [path for path in files if path.suffix in ("", ".sh", ".bash") and
               re.match(r"#!.*\b(ba)?sh\b", read(path).split("\n", 1)[0])]
    run = subprocess.run(["shellcheck", *scripts], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False)
    problems = run.stdout.splitlines() if run.returncode else []
    for path in files:
        if path.suffix == ".py":
            try:
                compile(read(path), str(path), "exec")
            except SyntaxError as error:
                problems.append(f"{path}:{error.lineno}: {error.msg}")
    return problems


def check_protos(_):
    return proto_lint.check(ROOT / "proto")


def check_api(_):
    try:
        return api_lint.check(ROOT)
    except api_lint.NoRelease as reason:
        raise Skipped(str(reason)) from reason


def check_dashboards(_):
    try:
        return dashboard_lint.check(ROOT)
    except dashboard_lint.NoPromtool as error:
        raise Skipped("promtool is not installed (Debian's package prometheus)") from error


def check_types(_):
    try:
        return dashboard_types.check(ROOT)
    except dashboard_types.NoTypes as reason:
        raise Skipped(str(reason)) from reason


def check_service(_):
    try:
        return service_lint.check(ROOT)
    except service_lint.NoSystemd as error:
        raise Skipped("systemd-analyze is not installed (Debian's package systemd)") from error


def check_kubernetes(_):
    try:
        return kubernetes_lint.check() + kubernetes_lint.check_types()
    except npm.NoTypes as reason:
        raise Skipped(str(reason)) from reason


def check_sizes(files):
    problems = []
    for path in files:
        if path.suffix in CXX | {".py", ".sh", ".proto"} or path == Path("dev"):
            lines = read(path).count("\n")
            if lines > MAX_LINES:
                problems.append(f"{path}: {lines} lines; a file past {MAX_LINES} lines is two files")
    return problems


def check_rooms(files):
    problems = []
    for path in files:
        if path.suffix not in CXX:
            continue
        for number, line in enumerate(read(path).split("\n"), 1):
            include = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            for room, forbidden, why in ROOMS:
                if include and str(path).startswith(room) and re.search(forbidden, include[1]):
                    problems.append(f"{path}:{number}: {room} may not include {include[1]}: {why}")
            if str(path).startswith("daemon/") and re.search(r"\bibv_\w+\(", line):
                problems.append(f"{path}:{number}: verbs belong to agent/transport")
            if str(path).startswith(STEADY_ROOM) and re.search(WALL_CLOCK, line.split("//")[0]):
                problems.append(f"{path}:{number}: goes by the wall clock; deadline.h has waits that do not")
    return problems


def check_text(files):
    """Leftovers: marks of unfinished work, conflict marks, blanks at the end of a line, no newline at the end."""
    problems = []
    unfinished = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
    for path in files:
        if path.suffix not in TEXT and path.name not in ("CMakeLists.txt", "dev"):
            continue
        content = read(path)
        for number, line in enumerate(content.split("\n"), 1):
            if unfinished.search(line):
                problems.append(f"{path}:{number}: unfinished: {line.strip()}")
            if re.match(r"(<{7}|>{7}) ", line):
                problems.append(f"{path}:{number}: conflict mark")
            if line != line.rstrip() and path.suffix != ".md":
                problems.append(f"{path}:{number}: blank at the end of the line")
        if content and not content.endswith("\n"):
            problems.append(f"{path}: no newline at the end")
    return problems


def check_sentences(files):
    return sentences.check(ROOT, files)


def with_compiler(check, files, everything):
    try:
        return check([path for path in files if path.suffix in CXX], everything)
    except cxx_lint.Unbuilt as error:
        return str(error).splitlines()


def main():
    parser = argparse.ArgumentParser(prog="./dev lint", description="Checks the sources.")
    parser.add_argument("--all", action="store_true", help="every file by the compiler and clang-tidy, not only changed ones")
    parser.add_argument("--no-tidy", action="store_true", help="without clang-tidy")
    options = parser.parse_args()
    files = tracked()
    checks = [("format", check_format), ("scripts", check_scripts), ("protos", check_protos), ("api", check_api),
              ("rooms", check_rooms), ("sizes", check_sizes), ("text", check_text), ("sentences", check_sentences),
              ("dashboards", check_dashboards),
              ("types", check_types), ("kubernetes", check_kubernetes), ("service", check_service)]
    by_compiler = [("includes", cxx_lint.check_includes)] + [("tidy", cxx_lint.check_tidy)] * (not options.no_tidy)
    checks += [(name, lambda files, check=check: with_compiler(check, files, options.all))
               for name, check in by_compiler]
    failed = 0
    for name, check in checks:
        try:
            problems = check(files)
        except Skipped as reason:
            print(f"skipped {name}: {reason}", flush=True)
            continue
        print(f"{'FAILED' if problems else 'ok    '} {name}", flush=True)
        for problem in problems:
            print(f"  {problem}", flush=True)
        failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
