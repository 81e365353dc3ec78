#!/usr/bin/env python3
"""The API is compared with the last release: a repository with one, and changes that break and that do not."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT / "tools"))

import api_lint  # noqa: E402  (found by the line above)

JOB = f"{api_lint.PROTOS}/job.proto"
CHANGES = [  # file, old text, new text, and what must be said of it; empty: nothing
    (JOB, "service JobService {", "service JobService {\n  rpc Guess(JobReport) returns (JobReport);", ""),
    (JOB, "uint64 seq = ", "int64 seq = ", "seq was uint64"),
    (JOB, "rpc CancelJob(", "rpc Cancel(", "CancelJob is gone"),
    (api_lint.HEADER, "RAILS_CANCELLED = 1", "RAILS_CANCELLED = 3", "RAILS_CANCELLED was 1, and is 3"),
    (api_lint.HEADER, "  uint64_t slices;\n} rails_report", "  uint64_t slices;\n  uint64_t more;\n} rails_report", ""),
    (api_lint.HEADER, "  uint64_t bytes_sent;", "", "struct rails_report was"),
    (api_lint.HEADER, "#define RAILS_JOB_CAPACITIES 1u", "#define RAILS_JOB_CAPACITIES 8u", "RAILS_JOB_CAPACITIES was 1u"),
    (JOB, "package rails.v1;", "package rails.v2;", "package was rails.v1"),
    (api_lint.HEADER, "void rails_close(", "int rails_close(", "rails_close() was void"),
    (api_lint.SYMBOLS, "    rails_close;\n", "", "rails_close is gone"),
]


class Api(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="railsd-api-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(harness.ROOT / api_lint.PROTOS, self.root / api_lint.PROTOS)
        for name in (api_lint.HEADER, api_lint.SYMBOLS):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(harness.ROOT / name, self.root / name)
        self.version("0.1.0")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@example", "commit", "--quiet", "--message", "first")

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.root, *arguments], check=True)

    def version(self, text):
        (self.root / "CMakeLists.txt").write_text(f"project(railsd VERSION {text} LANGUAGES CXX)\n")

    def test_changes(self):
        with self.assertRaises(api_lint.NoRelease):
            api_lint.check(self.root)
        self.git("tag", "v0.2.0-rc1")
        with self.assertRaises(api_lint.NoRelease):
            api_lint.check(self.root)
        self.git("tag", "v0.1.0")
        self.assertEqual(api_lint.check(self.root), [])
        for name, old, new, said in CHANGES:
            before = (self.root / name).read_text()
            self.assertTrue(old in before, (name, old))
            (self.root / name).write_text(before.replace(old, new, 1))
            with self.subTest(new=new, said=said):
                problems = api_lint.check(self.root)
                self.assertEqual(len(problems), 1 if said else 0, problems)
                self.assertTrue(all(said in problem for problem in problems), problems)
                self.version("0.2.0")
                self.assertEqual(api_lint.check(self.root), [], "0.2 may break what worked with 0.1")
            self.version("0.1.1")
            (self.root / name).write_text(before)

    def test_every_symbol_is_in_the_header(self):
        functions = {name[:-2] for name in api_lint.c_outline((harness.ROOT / api_lint.HEADER).read_text()) if
                     name.endswith("()")}
        self.assertEqual(functions, api_lint.symbols((harness.ROOT / api_lint.SYMBOLS).read_text()).keys())


if __name__ == "__main__":
    harness.main()
