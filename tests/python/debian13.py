#!/usr/bin/python3
"""Runs the ranks of test_torch.py with the torch 2.6 and the Python 3.13 of Debian 13, in a root of their own. The daemons run here.

    tests/python/debian13.py        # needs root, the network and 2 GB; some minutes the first time
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import conftest

BUILD = conftest.ROOT / "build/release"
sys.path.insert(0, str(conftest.ROOT / "tools"))
os.environ["RAILS_LIBRARY"] = str(BUILD / "client/c/librails.so")

import debian_root  # noqa: E402  (found by the line above)
import test_torch  # noqa: E402  (loads the library)

PROGRAMS = ["torch_rank.py", "torch_pieces_rank.py", "torch_suite_rank.py"]
SHARED = ["/dev", "/proc", "/sys", "/tmp", str(conftest.ROOT)]
ENTER = 'for folder in $SHARED; do mkdir -p "$0$folder" && mount --rbind "$folder" "$0$folder"; done; exec chroot "$0" "$@"'


def torch_root():
    """The root with torch, made once."""
    root = debian_root.ROOTS / "trixie-torch"
    if not root.exists():
        archive = debian_root.base_tar("trixie")
        with tempfile.TemporaryDirectory(prefix="torch-", dir=debian_root.ROOTS) as folder:
            new = Path(folder) / "root"
            new.mkdir()
            debian_root.run("tar", "-C", new, "--numeric-owner", "-xpf", archive)
            (new / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
            apt = ["chroot", new, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends"]
            debian_root.run(*apt, "update")
            debian_root.run(*apt, "install", "python3-torch", "python3-numpy", "python3-setuptools")
            new.rename(root)
    return root


def main():
    root = torch_root()
    conftest.harness.BUILD = BUILD
    os.environ.update(PYTHONPATH=str(conftest.ROOT / "client/python"), PYTHONDONTWRITEBYTECODE="1", SHARED=" ".join(SHARED))
    python = ["unshare", "--mount", "sh", "-ec", ENTER, str(root), "/usr/bin/python3"]
    print(subprocess.run([*python, "-c", "import sys, torch; print('torch', torch.__version__, 'Python', sys.version)"],
                         stdout=subprocess.PIPE, text=True, check=True).stdout, end="")
    for program in PROGRAMS:
        with conftest.start_cluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as folder:
            test_torch.run_ranks(cluster, program, Path(folder) / "store", python)
        print("ok", program)


if __name__ == "__main__":
    main()
