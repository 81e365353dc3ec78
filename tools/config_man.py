#!/usr/bin/env python3
"""Prints the manual page railsd.yaml(5), made from deploy/railsd.example.yaml: its comments and its keys.

A comment belongs to the keys that follow it. Its lines that are indented stay as they are; others are filled.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def literal(text):
    """Text with roff's escapes; `code` becomes bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return "\\&" + text if text.startswith((".", "'")) else text


def as_text(comments):
    """Comment lines, without their marks, as paragraphs and tables."""
    out, table = [], False
    for line in comments:
        indented = line.startswith("  ")
        if indented != table:
            out.append(".sp\n.nf" if indented else ".fi\n.sp")
            table = indented
        if line or table:
            out.append(literal(line.rstrip()) if line.strip() else ".sp")
    return out + ([".fi"] if table else [])


def as_example(lines):
    return [".sp", ".nf"] + [literal(line) for line in lines] + [".fi"]


def page(example, date):
    """The whole page."""
    lines = example.split("\n")
    head = lines[:lines.index("")]
    out = [f'.TH RAILSD.YAML 5 {date} railsd', ".SH NAME", "railsd.yaml \\- configuration of the daemon railsd",
           ".SH SYNOPSIS", ".I /etc/railsd/railsd.yaml", ".SH DESCRIPTION"]
    out += as_text([line[2:] for line in head])
    out += [".SH KEYS", "Each with its default, unless the text says otherwise."] + keys(lines[lines.index(""):])
    # Drops .sp after a heading, which makes room by itself.
    out = [line for line, before in zip(out, ["", *out]) if line != ".sp" or not before.startswith(".S")]
    return "\n".join(out + [".SH SEE ALSO", ".BR railsd (8),", ".BR railsctl (1)"]) + "\n"


def keys(lines):
    """A subsection for each key of the top level."""
    out, comments, values = [], [], []

    def end_values():
        if values:
            out.extend(as_example(values))
            values.clear()

    for line in lines:
        stripped = line.strip()
        if stripped.startswith("#"):
            end_values()
            comments.append(stripped[2:])
        elif not stripped:
            end_values()
        else:
            top = re.match(r"(\w+):", line)
            if top:
                end_values()
                out.append(f".SS {literal(top[1])}")
            if comments:
                out.extend([".sp"] * (not top) + as_text(comments))
                comments.clear()
            values.append(line)
    end_values()
    return out + (as_text(comments) if comments else [])


def main():
    date = re.search(r"^## .* - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    print(page((ROOT / "deploy/railsd.example.yaml").read_text(), date), end="")


if __name__ == "__main__":
    main()
