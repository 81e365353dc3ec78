"""Checks the systemd service without starting it: systemd finds no fault with the unit, and it is well shut in."""

import shutil
import subprocess
import tempfile
from pathlib import Path

# Ten times what `systemd-analyze security` calls exposure: 0 is shut in, 100 is root without a fence.
MAX_EXPOSURE = 29


class NoSystemd(Exception):
    """systemd-analyze is not here."""


def analyze(*arguments):
    """Ends well and prints nothing when there is nothing to say."""
    run = subprocess.run(["systemd-analyze", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)
    return run.returncode, run.stdout.splitlines()


def check(root):
    """Mistakes in deploy/systemd/railsd.service, one line each."""
    if not shutil.which("systemd-analyze"):
        raise NoSystemd
    unit = root / "deploy/systemd/railsd.service"
    with tempfile.TemporaryDirectory(prefix="railsd-unit-") as folder:
        # The programs are not installed here; that they are there is the packages' business.
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
