#!/usr/bin/env python3
"""Where the version comes from, and the Debian changelog that is made from CHANGELOG.md."""

import sys
import tempfile
import unittest
from pathlib import Path

import debian

sys.path.insert(0, str(debian.ROOT / "tools"))

import debian_changelog  # noqa: E402  (found by the line above)

CHANGES = """# Changes

## 0.2.0 - 2026-02-03

- One thing.
- Another thing, which takes
  two lines.

## 0.1.0 - 2026-01-02

- The first.
"""


class Version(unittest.TestCase):

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="railsd-version-")))
        (self.folder / "CHANGELOG.md").write_text(CHANGES)

    def git(self, *arguments):
        return debian.run("git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments)

    def version(self):
        out = self.folder / "version.cc"
        debian.run("cmake", "-D", f"SOURCE_DIR={self.folder}", "-D", "PROJECT_VERSION=0.1.0", "-D", f"OUT={out}", "-P",
                   debian.ROOT / "common/version/version.cmake")
        text = out.read_text()
        self.assertIn('"2026-02-03"', text)
        return text.split('Version() { return "')[1].split('"')[0], out.stat().st_mtime_ns

    def test_it_comes_from_the_tag(self):
        self.assertEqual(self.version()[0], "0.1.0")  # no git
        self.git("init", "-q")
        self.git("commit", "-q", "--allow-empty", "-m", "one")
        self.git("tag", "nightly")
        self.assertEqual(self.version()[0], "0.1.0")  # no tag of a version
        self.git("tag", "v0.2.0")
        self.assertEqual(self.version()[0], "0.2.0")
        self.git("commit", "-q", "--allow-empty", "-m", "two")
        later, written = self.version()
        self.assertEqual(later, "0.2.0+1.g" + self.git("rev-parse", "--short=7", "HEAD").strip())
        self.assertEqual(self.version(), (later, written))  # the same version compiles nothing
        for older, newer in (("0.2.0", later), (later, "0.2.1")):
            debian.run("dpkg", "--compare-versions", older, "lt", newer)

    def test_changelog(self):
        text = debian_changelog.changelog("railsd", "0.2.0+1.gabc", CHANGES)
        path = self.folder / "changelog"
        path.write_text(text)
        self.assertEqual(debian.run("dpkg-parsechangelog", "-l", path, "--all", "-S", "Version"), "0.2.0+1.gabc\n")
        self.assertIn("  * Another thing, which takes two lines.\n", text)
        self.assertIn(" -- railsd maintainers <railsd@localhost>  Fri, 02 Jan 2026 00:00:00 +0000\n", text)
        self.assertEqual(text.count("stable; urgency=medium"), 3)
        with self.assertRaisesRegex(ValueError, "not '## X.Y.Z"):
            debian_changelog.changelog("railsd", "0.2.0", "## Next\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
