"""The pages on Python and gRPC: their examples run, the table of errors is right."""

import builtins
import os
import re
import subprocess
import sys

import pytest

import doc_blocks
import rails
from conftest import ROOT, sockets

PAGE = ROOT / "docs/python.md"


@pytest.mark.parametrize("page", ["python.md", "grpc.md"])
def test_commands(cluster, tmp_path, page):
    (tmp_path / "python3").symlink_to(sys.executable)
    blocks = doc_blocks.blocks(ROOT / "docs" / page, "python")
    assert blocks
    for block in blocks:
        run = subprocess.run(["bash", "-ec", block.text.replace("/run/railsd", f"{sockets(cluster, 0)} {sockets(cluster, 1)}")],
                             cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        assert run.returncode == 0, run.stdout
        assert block.output and doc_blocks.missing(block.output, run.stdout) is None, run.stdout


def test_errors():
    rows = re.findall(r"^\| (`\w+Error`[^|]*) \| ([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    named = {name: re.findall(r"\w+", base) for names, base in rows for name in re.findall(r"\w+Error", names)}
    assert set(named) == {name for name in rails.__all__ if name.endswith("Error")} - {"RailsError"}
    for name, bases in named.items():
        assert not bases or issubclass(getattr(rails, name), getattr(builtins, bases[0]))
