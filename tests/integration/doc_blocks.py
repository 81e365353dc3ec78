"""Reads the commands in the documentation's pages, for the tests that run them.

A fenced block with the language `sh` holds commands. A label after the language says where they run:

    ```sh               by tests/integration/test_docs.py, on a small cluster
    ```sh systemd       where systemd is booted; likewise docker, kubernetes, package, python, dev, ..., in their test suites
    ```sh read          nowhere: only for reading

A block of language `output` shows the output of the `sh` block before it. Its lines come in that order, other lines may
come between them, `...` stands for any text, and a row of blanks counts as one.
"""

import dataclasses
import re

FENCE = re.compile(r"^( *)```(\S*)(?: +(\S+))?\s*$")


@dataclasses.dataclass
class Block:
    """Commands of one page."""

    page: str
    line: int  # of the fence, from 1
    label: str  # empty: runs on a cluster
    text: str
    output: str = ""  # text of the output block; empty: none

    def __str__(self):
        return f"{self.page}:{self.line}"


def fenced(text):
    """All fenced blocks: (line, language, label, text)."""
    lines, found, number = text.split("\n"), [], 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        number += 1
        if not fence:
            continue
        begin, inside = number, []
        while number < len(lines) and lines[number].strip() != "```":
            inside.append(lines[number][len(fence[1]):])
            number += 1
        number += 1
        found.append((begin, fence[2], fence[3] or "", "\n".join(inside) + "\n"))
    return found


def blocks(path, label=None, root=None):
    """The `sh` blocks of a page in order: those with one label, or all."""
    name = str(path.relative_to(root) if root else path)
    found = []
    for line, language, mark, text in fenced(path.read_text()):
        if language == "sh":
            found.append(Block(name, line, mark, text))
        elif language == "output" and found:
            found[-1].output = text
    return [block for block in found if label is None or block.label == label]


def missing(shown, printed):
    """The first line of `shown` that is missing in `printed` at its place; None if all are there."""
    lines = [" ".join(line.split()) for line in printed.split("\n")]
    at = 0
    for line in shown.strip("\n").split("\n"):
        words = " ".join(line.split())
        pattern = re.compile(".*".join(re.escape(part) for part in words.split("...")))
        while at < len(lines) and not pattern.search(lines[at]):
            at += 1
        if at == len(lines):
            return line
        at += 1
    return None
