"""Finds sentences of pages, comments, docstrings and strings that begin without the thing that they are about.

Pages: sentences, items and cells. A heading is no sentence. Comments: C++, C, protos, Python, shell, CMake, YAML.
Strings: those of the programs, and the texts of alerts and dashboards. A part of a longer text begins with a blank.
"""

import ast
import re
from pathlib import Path

BEGINNING = r"(Of|What|Who|Those|That|So)\b"
NEW_BLOCK = re.compile(r"\s*([-*]|\d+\.)\s|\||>")
COMMENT = re.compile(r"(?:^|\s)(?://+<?|#+)(?: (.*)|$)")
C_LIKE = {".cc", ".h", ".c", ".proto"}
OTHER = {".sh", ".bash", ".cmake", ".yaml", ".yml"}
PROGRAMS = re.compile(r"(agent|client|common|daemon|sim)/")
# Tokens of C++ in which a quote could be, and strings. `'` is in numbers, too.
CXX_TOKEN = re.compile(r"""
    //[^\n]* | /\*.*?\*/ | \b\d[\w']* | '(?:[^'\\\n]|\\.)+'
    | R"\((?P<raw>.*?)\)" | "(?P<text>(?:[^"\\\n]|\\.)*)" | [^\s\\]""", re.S | re.X)
SETTING = re.compile(r"""\s*"?(?:title|description|summary)"?: (["']?)(?P<text>.*)\1""")
INPUTS = re.compile(r"/corpus/")  # stored inputs of fuzz programs


def begins_badly(lines):
    """Gives (number, word) of each line with a bad beginning. `lines`: (number, text); None separates two texts."""
    goes_on = False  # the line continues a sentence of the line before
    for number, line in lines:
        if line is None:
            goes_on = False
            continue
        text = re.sub(r"`[^`]*`", "`", line).rstrip()
        start = r"[.!?][)*]*\s+|\|\s*"
        if not goes_on or NEW_BLOCK.match(text):
            start += r"|^[-*>\s\d.]*"
        if found := re.search(rf"(?:{start})[*_(\"]*{BEGINNING}", text):
            yield number, found[1]
        goes_on = bool(text) and not re.search(r"[.!?:][)*\"]*$", text)


def page(content):
    code = False
    for number, line in enumerate(content.split("\n"), 1):
        if line.lstrip().startswith("```"):
            code = not code
        yield number, None if code or line.startswith("#") or line.lstrip().startswith("```") else line


def comments(content, mark):
    """Comments of a language. Assumes that no string has the mark after a blank."""
    for number, line in enumerate(content.split("\n"), 1):
        at = re.search(rf"(^|\s){mark}", line)
        found = at and COMMENT.match(line[at.start():])
        if found and line[:at.start()].strip():
            yield number, None  # a comment behind code does not continue the line before
        yield number, (found[1] or "") if found else None


def docstrings(content):
    """Strings that begin a line with three quotes."""
    inside = documents = False
    for number, line in enumerate(content.split("\n"), 1):
        for at in re.finditer('"""', line):
            inside = not inside
            documents = inside and not line[:at.start()].strip()
        text = line.strip().lstrip('"')
        yield number, text if documents or line.lstrip().startswith('"""') and text else None


def cxx_strings(content):
    """Gives (line, text) of each string. Strings that only blanks separate are one."""
    begin, parts = 0, []
    for token in CXX_TOKEN.finditer(content):
        text = token["text"] if token["raw"] is None else token["raw"]
        if text is not None:
            begin = begin if parts else content.count("\n", 0, token.start()) + 1
            parts.append(text)
        elif parts and not token[0].startswith(("//", "/*")):
            yield begin, "".join(parts)
            parts = []


def python_strings(content):
    tree = ast.parse(content)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def settings(content):
    for number, line in enumerate(content.split("\n"), 1):
        if found := SETTING.match(line):
            yield number, found["text"]


def strings_of(path, content):
    if str(path).startswith("dashboards/"):
        return settings(content)
    if not PROGRAMS.match(str(path)):
        return []
    if path.suffix in C_LIKE - {".proto"}:
        return cxx_strings(content)
    return python_strings(content) if path.suffix == ".py" else []


def string_begins_badly(text):
    """Gives the word with which a string or a later sentence of it begins badly, or None."""
    found = re.match(r"([Oo]f|[Ww]hat|[Ww]ho|[Tt]hose|[Tt]hat|[Ss]o)\s", text) or re.search(rf"[.!?]\s+{BEGINNING}", text)
    return found and found[1]


def lines_of(path, content):
    if INPUTS.search(str(path)):
        return []
    if path.suffix == ".md":
        return page(content)
    if path.suffix in C_LIKE:
        return comments(content, "//")
    if path.suffix == ".py":
        return [*comments(content, "#"), (0, None), *docstrings(content)]
    if path.suffix in OTHER or path.name in ("CMakeLists.txt", "dev"):
        return comments(content, "#")
    return []


def check(root, files):
    problems = []
    for path in map(Path, files):
        content = (root / path).read_text(errors="replace")
        for number, word in begins_badly(lines_of(path, content)):
            problems.append(f"{path}:{number}: begins with {word}: {content.split(chr(10))[number - 1].strip()}")
        for number, text in strings_of(path, content):
            if word := string_begins_badly(text):
                problems.append(f"{path}:{number}: a string begins with {word}: {text.strip()[:100]}")
    return problems
