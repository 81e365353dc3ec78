"""Installs npm's packages in a folder of the build, in the versions of a lock file, and type-checks with TypeScript."""

import shutil
import subprocess


class NoTypes(Exception):
    """The reason why the types are not available here."""


def install(source, folder, what):
    """Copies `source` into `folder` and installs the packages that it names, unless these versions are there."""
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            raise NoTypes(f"{tool} is not installed (Debian's packages nodejs and npm)")
    folder.mkdir(parents=True, exist_ok=True)
    stamp, lock = folder / "installed", (source / "package-lock.json").read_text()
    if not stamp.exists() or stamp.read_text() != lock:
        _copy(source, folder)
        try:
            run = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1",
                                  "--fetch-timeout=30000"], cwd=folder, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoTypes(f"npm could not install {what} within 5 minutes") from error
        if run.returncode != 0:
            why = [line for line in run.stdout.splitlines() if line.startswith("npm ERR") or "error" in line]
            raise NoTypes(f"npm could not install {what}: {(why or ['no reason given'])[0]}")
        stamp.write_text(lock)
    _copy(source, folder)


def _copy(source, folder):
    for path in source.iterdir():
        shutil.copyfile(path, folder / path.name)


def check_types(folder):
    """Errors that TypeScript finds in `folder`, line by line."""
    run = subprocess.run(["node", "node_modules/typescript/bin/tsc", "-p", "."], cwd=folder, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)
    return (run.stdout.splitlines() or [f"tsc ended with {run.returncode}"]) if run.returncode else []
