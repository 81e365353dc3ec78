"""Checks of C++ sources that need a compiler: each changed file compiles alone, and clang-tidy finds nothing. Builds
put several files into one compilation, which hides missing includes."""

import concurrent.futures
import json
import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/lint"  # configured without unity builds; only the files that protoc writes are compiled


class Unbuilt(Exception):
    """Why there are no compile commands."""


def git(*arguments):
    run = subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                         check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def changed(files):
    """C++ files that differ from main (or, on main itself, from the commit before)."""
    base = None
    for main in ("origin/main", "main"):
        base = base or git("merge-base", "HEAD", main)
    if base is None or base == git("rev-parse", "HEAD"):
        base = git("rev-parse", "HEAD~1")
    names = None if base is None else git("diff", "--name-only", base)
    if names is None:
        return files
    names = {Path(name) for name in f"{names}\n{git('ls-files', '-o', '--exclude-standard') or ''}".split("\n") if name}
    return [path for path in files if path in names]


def compile_commands():
    """The compile command of each source, by its path in the project."""
    for command in (["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                     "-DCMAKE_UNITY_BUILD=OFF", "-DRAILSD_FUZZ=-fsanitize=fuzzer-no-link", "-DCMAKE_C_COMPILER=clang",
                     "-DCMAKE_CXX_COMPILER=clang++", "-DRAILSD_SOURCES=none"],  # librails.so with the system's headers
                    ["cmake", "--build", BUILD, "--target", "cmake_object_order_depends_target_railsd_grpc"]):
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0:
            raise Unbuilt(f"{shlex.join(map(str, command))} ended with {run.returncode}:\n{run.stdout[-4000:]}")
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    return {Path(entry["file"]).relative_to(ROOT): shlex.split(entry["command"]) for entry in entries
            if entry["file"].startswith(f"{ROOT}/") and not entry["file"].startswith(f"{ROOT}/build/")}


def command_of(path, commands):
    """The compile command of a file. A header takes that of a source that includes it, or of the nearest source."""
    if path in commands:
        return commands[path]
    include = f'#include "{path}"'

    def distance(source):
        common = len(os.path.commonpath([ROOT / source.parent, ROOT / path.parent]).split("/"))
        return (include not in (ROOT / source).read_text(errors="replace"), source.stem != path.stem, -common, str(source))
    return commands[min(commands, key=distance)]


def check_alone(path, commands):
    """Compiles a file by itself, without making code. Returns the compiler's messages if it fails."""
    command = command_of(path, commands)
    options = command[:command.index("-o")]
    run = subprocess.run([*options, "-fsyntax-only", "-Wno-pragma-once-outside-header", "-Wno-unused-const-variable",
                          "-Wno-unused-function", "-x", "c++", str(ROOT / path)],
                         cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return (run.stdout.splitlines() or [f"{path}: the compiler ended with {run.returncode}"]) if run.returncode else []


def run_each(paths, check):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [problem for problems in pool.map(check, paths) for problem in problems]


def check_includes(files, everything=False):
    """Problems of files that do not compile alone. Looks at changed files only, unless `everything` is set."""
    paths = files if everything else changed(files)
    if not paths:
        return []
    commands = compile_commands()
    paths = [path for path in paths if path.suffix == ".h" or path in commands]
    return run_each(paths, lambda path: check_alone(path, commands))


def check_tidy(files, everything=False):
    """Problems that clang-tidy finds in changed sources and in sources of the same name as changed headers."""
    stems = {path.with_suffix("") for path in (files if everything else changed(files))}
    sources = [path for path in files if path.suffix == ".cc" and path.with_suffix("") in stems]
    if not sources:
        return []
    commands = compile_commands()

    def tidy(path):
        run = subprocess.run(["clang-tidy", "--quiet", "-p", BUILD, path], cwd=ROOT, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, check=False)
        print(f"  clang-tidy {path}: {'problems' if run.returncode else 'ok'}", flush=True)
        return (run.stdout.splitlines() or [f"{path}: clang-tidy ended with {run.returncode}"]) if run.returncode else []
    return run_each([path for path in sources if path in commands], tidy)
