"""Compares the API with the last release, the tag vX.Y.Z: the proto rails/v1, the C header and the symbols of
librails.so. A change that breaks them needs a new major version, or a new minor one before 1.0 (docs/compatibility.md)."""

import re
import subprocess

PROTOS, HEADER, SYMBOLS = "proto/rails/v1", "client/c/include/rails/rails.h", "client/c/exports.map"
FIELD = re.compile(r"(repeated |optional )?(map<[^>]*>|[\w.]+) (\w+) = (\d+)\b.*;")
VALUE = re.compile(r"(\w+) = (-?\w+)\b.*;")
RPC = re.compile(r"rpc (\w+)\((.*?)\) returns \((.*?)\)")


class NoRelease(Exception):
    """There is nothing to compare with."""


def proto_outline(text):
    """Fields, values and calls by name, each with its number and type, which must stay."""
    found, scopes = {"package": "".join(re.findall(r"^package ([\w.]+);", text, re.MULTILINE))}, []
    for line in re.sub(r"//.*", "", text).splitlines():
        line = line.strip()
        if opening := re.match(r"(message|enum|service|oneof) (\w+) \{", line):
            if not line.endswith("}"):
                scopes.append(opening.groups())
            continue
        if line.startswith("}") and scopes:
            scopes.pop()
            continue
        name = ".".join(scope for kind, scope in scopes if kind != "oneof")
        if rpc := RPC.match(line):
            found[f"{name}.{rpc[1]}"] = f"({rpc[2]}) returns ({rpc[3]})"
        elif scopes and scopes[-1][0] == "enum":
            if value := VALUE.match(line):
                found[f"{name}.{value[1]}"] = value[2]
        elif scopes and (field := FIELD.match(line)):
            found[f"{name}.{field[3]}"] = f"{field[1] or ''}{field[2]}, number {field[4]}"
    return found


def c_outline(text):
    """Functions with their types, constants with their values, and structures with their fields in order."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {name: value.strip() for name, value in re.findall(r"^#define (RAILS_\w+) +(\S.*)$", text, re.MULTILINE)
             if not name.endswith("MUST_USE")}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", text, flags=re.DOTALL):
        found[f"struct {name}"] = [" ".join(field.split()) for field in body.split(";") if field.strip()]
    for body in re.findall(r"enum(?: \w+)? \{(.*?)\}", text, flags=re.DOTALL):
        for name, value in re.findall(r"(\w+)\s*=\s*([^,\s]+)", body):
            found[name] = value
    without = re.sub(r"\{.*?\}", "", text, flags=re.DOTALL)
    for result, name, parameters in re.findall(r"^([\w ]+[ *]+)(rails_\w+)\(([^;]*?)\)[^;()]*;", without, re.MULTILINE):
        found[f"{name}()"] = " ".join(f"{result}({parameters})".split())
    return found


def symbols(text):
    """Each exported symbol with its version."""
    return {symbol: node for node, body in re.findall(r"^(\w+) \{(.*?)\}", text, re.MULTILINE | re.DOTALL)
            for symbol in re.findall(r"^\s+(rails_\w+);", body, re.MULTILINE)}


def compare(old, new, where):
    """Names of `old` that `new` lacks or has with another meaning. Structures may have more fields at the end."""
    problems = []
    for name, before in old.items():
        after = new.get(name)
        kept = after == before or (isinstance(before, list) and after is not None and after[:len(before)] == before)
        if not kept:
            problems.append(f"{where}: {name} " + (f"is gone; it was {before}" if after is None else
                                                   f"was {before}, and is {after}"))
    return problems


def may_break(before, now):
    """True if the version `now` may break programs that worked with `before`."""
    old, new = ([int(part) for part in version.split(".")] for version in (before, now))
    return new[0] > old[0] or (new[0] == old[0] == 0 and new[1] > old[1])


def check(root):
    """All problems. Raises NoRelease."""
    def git(*arguments):
        return subprocess.run(["git", "-C", root, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=False).stdout
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*.[0-9]*.[0-9]*", "--exclude", "*[!0-9.v]*").strip()
    if not tag:
        raise NoRelease("no commit before this one has the tag of a release, as in v0.1.0")
    now = re.search(r"project\(railsd VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]
    if may_break(tag[1:], now):
        return []
    outlines = {path: proto_outline for path in git("ls-tree", "--name-only", tag, PROTOS + "/").split()}
    outlines |= {HEADER: c_outline, SYMBOLS: symbols}
    problems = []
    for path, outline in outlines.items():
        new = (root / path).read_text() if (root / path).exists() else ""
        problems += compare(outline(git("show", f"{tag}:{path}")), outline(new), path)
    return [f"{problem} (in {tag}; this is {now})" for problem in problems]
