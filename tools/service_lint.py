"""Checks the systemd service without starting it: systemd accepts the unit, and its sandbox is tight enough."""

import shutil
import subprocess
import tempfile
from pathlib import Path

# Ten times the exposure that `systemd-analyze security` gives: 0 is a full sandbox, 100 is root without any.
MAX_EXPOSURE = 29


class NoSystemd(Exception):
    """systemd-analyze is not installed."""


def analyze(*arguments):
    """Runs systemd-analyze. Returns its exit status, and its output as lines."""
    run = subprocess.run(["systemd-analyze", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)
    return run.returncode, run.stdout.splitlines()


def check(root):
    """Mistakes in deploy/systemd/railsd.service, one line each."""
    if not shutil.which("systemd-analyze"):
        raise NoSystemd
    unit = root / "deploy/systemd/railsd.service"
    with tempfile.TemporaryDirectory(prefix="railsd-unit-") as folder:
        # Replaces the programs by stubs, because they are not installed here; the packages install them.
        text = unit.read_text()
        for program in ("railsd", "railsctl"):
            stub = Path(folder) / program
            stub.write_text("#!/bin/sh\n")
            stub.chmod(0o755)
            text = text.replace(f"/usr/bin/{program} ", f"{stub} ")
        copy = Path(folder) / unit.name
        copy.write_text(text)
        status, problems = analyze("verify", "--man=no", str(copy))
        if status != 0 and not problems:
            problems.append(f"systemd-analyze verify ended with {status}")
    status, report = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit))
    if status != 0:
        problems += report[-1:]
    return [f"{unit.relative_to(root)}: {problem}" for problem in problems]
