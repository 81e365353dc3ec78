#!/usr/bin/env python3
"""Prints docs/configuration.md: each key with its default as the daemon tells it, explained by the example's comments.

    build/release/daemon/railsd --config-table | tools/config_reference.py >docs/configuration.md
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Configuration

Made by `tools/config_reference.py` from the daemon's own table of keys (`railsd --config-table`) and from the comments of
[railsd.example.yaml](../deploy/railsd.example.yaml). One YAML file holds all of it, `/etc/railsd/railsd.yaml` where the
packages are installed; only `rails` must be given. The same text is in the manual page `railsd.yaml(5)`.
"""


def blocks(comments):
    """Comment lines as Markdown: indented ones stay as they are."""
    out, literal = [], False
    for line in comments:
        indented = line.startswith("  ")
        if indented != literal:
            out.append("")
        literal = indented
        out.append("    " + line.rstrip() if indented else line.strip())
    return out + [""]


def sections(lines):
    """(key of the top level, its comments and YAML) in the example's order."""
    found, comments = [], []
    for line in lines:
        top = re.match(r"(\w+):", line)
        if top:
            found.append((top[1], comments, [line]))
            comments = []
        elif line.startswith("#"):
            comments.append(line[2:])
        elif line.strip():
            found[-1][2].append(line)
        elif comments:
            comments.append("")
    return found, comments


def reference(table, example):
    """The whole page. `table`: as railsd prints it."""
    lines = example.split("\n")
    heading, rows = table.splitlines()[:2], table.splitlines()[2:]
    start = lines.index("")
    found, rest = sections(lines[start:])
    out = [HEAD] + blocks([line[2:] for line in lines[:start]])
    left = set(rows)
    for key, comments, yaml in found:
        out += [f"## {key}", ""] + (blocks(comments) if comments else [])
        mine = [row for row in rows if re.match(rf"\| `{key}[.`]", row)]
        left -= set(mine)
        if len(yaml) > 1:
            out += ["```yaml", *yaml, "```", ""]
        out += [*heading, *mine, ""]
    if left:
        raise SystemExit("the example lacks: " + ", ".join(sorted(left)))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out + blocks(rest))).rstrip() + "\n"


def main():
    print(reference(sys.stdin.read(), (ROOT / "deploy/railsd.example.yaml").read_text()), end="")


if __name__ == "__main__":
    main()
