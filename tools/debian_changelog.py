#!/usr/bin/env python3
"""Makes the changelog of a Debian package from CHANGELOG.md.

    tools/debian_changelog.py PACKAGE VERSION FILE.gz

CHANGELOG.md has a heading `## X.Y.Z - YYYY-MM-DD` for each version, the newest first, and lists of what has changed
under it. A VERSION other than the newest heading gets an entry of its own, on top.
"""

import datetime
import gzip
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAINTAINER = "railsd maintainers <railsd@localhost>"


def versions(text):
    """(version, date, points) of each heading."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        match = re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})", heading.strip())
        if not match:
            raise ValueError(f"CHANGELOG.md: '## {heading}': not '## X.Y.Z - YYYY-MM-DD'")
        points = [" ".join(point.split()) for point in re.findall(r"^- (.*(?:\n  .*)*)", body, re.MULTILINE)]
        found.append((match[1], datetime.date.fromisoformat(match[2]), points))
    return found


def entry(package, version, date, points):
    lines = [textwrap.fill(point, 78, initial_indent="  * ", subsequent_indent="    ") for point in points]
    when = date.strftime("%a, %d %b %Y 00:00:00 +0000")
    return f"{package} ({version}) stable; urgency=medium\n\n" + "\n".join(lines) + f"\n\n -- {MAINTAINER}  {when}\n"


def changelog(package, version, text):
    known = versions(text)
    entries = [entry(package, *one) for one in known]
    if version != known[0][0]:
        entries.insert(0, entry(package, version, known[0][1], [f"Between versions; the latest is {known[0][0]}."]))
    return "\n".join(entries)


def main():
    package, version, path = sys.argv[1:]
    text = changelog(package, version, (ROOT / "CHANGELOG.md").read_text())
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(text.encode())


if __name__ == "__main__":
    main()
