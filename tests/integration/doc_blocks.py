"""The commands in the pages of documentation, for the tests that run them.

A fenced block whose language is `sh` holds commands. Behind the language may stand a label, which says where they are run:

    ```sh               by tests/integration/test_docs.py, on a small cluster
    ```sh systemd       where systemd is booted; docker, kubernetes, package, dev, ... likewise, by the suites of those
    ```sh read          nowhere: only to be read

A block of language `output` shows what the `sh` block before it prints: each of its lines comes in that order, other lines
may come between them, `...` stands for any text, and blanks count as one.
"""

import dataclasses
import re

FENCE = re.compile(r"^( *)```(\S*)(?: +(\S+))?\s*$")


@dataclasses.dataclass
class Block:
    """Commands of one page."""

    page: str
    line: int  # of the fence, from 1
    label: str  # empty: run on a cluster
    text: str
    output: str = ""  # shown below it; empty: none

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
    """The `sh` blocks of a page in their order; those of one label, or all of them."""
    name = str(path.relative_to(root) if root else path)
    found = []
    for line, language, mark, text in fenced(path.read_text()):
        if language == "sh":
            found.append(Block(name, line, mark, text))
        elif language == "output" and found:
            found[-1].output = text
    return [block for block in found if label is None or block.label == label]


def missing(shown, printed):
    """The first line of `shown` that `printed` does not have in its place; None when all are there."""
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
