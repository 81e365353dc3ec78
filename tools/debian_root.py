#!/usr/bin/env python3
"""A minimal Debian as an archive, made once: the clean root of the package tests, the base of the Docker images.

    tools/debian_root.py        # prints the path of Debian 12's archive, after making it where it is missing; needs root
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ROOT / "build/roots"
RELEASE = "bookworm"


class RootError(Exception):
    """Why there is no root file system."""


def base_tar(release=RELEASE):
    """Path of the archive of a minimal root. Waits while another caller makes it."""
    archive = ROOTS / f"{release}-minbase.tar"
    ROOTS.mkdir(parents=True, exist_ok=True)
    with open(ROOTS / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            make(archive, release)
    return archive


def make(archive, release):
    """Bootstraps a root beside `archive` and packs it. The archive gets its name only when it is complete."""
    if os.geteuid() != 0:
        raise RootError("debootstrap needs root: it makes devices and enters the new root")
    if subprocess.run([ROOT / "dev", "setup", "package"], stdout=sys.stderr, check=False).returncode != 0:
        raise RootError("debootstrap could not be installed")
    with tempfile.TemporaryDirectory(prefix="bootstrap-", dir=ROOTS) as folder:
        run("debootstrap", "--variant=minbase", release, f"{folder}/root")
        # Removes apt's downloads, as Debian's images do: `apt-get update` gets them again.
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
            run("find", f"{folder}/root/{leftover}", "-type", "f", "-delete")
        run("tar", "-C", f"{folder}/root", "--numeric-owner", "--one-file-system", "-cf", f"{folder}/root.tar", ".")
        os.replace(f"{folder}/root.tar", archive)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          check=False)
    if done.returncode != 0:
        raise RootError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout[-2000:]}")


if __name__ == "__main__":
    try:
        print(base_tar())
    except RootError as error:
        sys.exit(f"debian_root: {error}")
