"""Checks .proto files by rules like buf's STANDARD ones, and that every RPC documents the codes that it may return."""

import re
from pathlib import Path

LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")
STATUS = re.compile(r"\b(OK|CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|"
                    r"PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|"
                    r"INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED)\b")
RPC = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\)")
FIELD = re.compile(r"(?:repeated |optional )?(?:map<[^>]*>|[\w.]+) (\w+) = (\d+)\b.*;")


class ProtoFile:
    """One file's rules; problems are `line: text`."""

    def __init__(self, path, root):
        self.path, self.relative = path, path.relative_to(root)
        self.problems, self.rpcs = [], []
        self.scopes = []  # (kind, name, comment, seen names and numbers)
        self.comment = []
        self.package = ""

    def problem(self, line, text):
        self.problems.append(f"{self.path}:{line}: {text}")

    def check(self):
        for number, raw in enumerate(self.path.read_text().splitlines(), 1):
            line = raw.strip()
            if line.startswith("//"):
                self.comment.append(line[2:].strip())
                continue
            if line:
                self.statement(number, re.sub(r"\s*//.*", "", line))
            self.comment = []
        if not self.package:
            self.problem(1, "has no package")
        return self.problems

    def statement(self, number, line):
        if match := re.fullmatch(r"package ([\w.]+);", line):
            self.package_rules(number, match[1])
        elif match := re.match(r"(message|enum|service|oneof) (\w+) \{", line):
            self.opening(number, match[1], match[2], closed=line.endswith("}"))
        elif line.startswith("}"):
            if self.scopes:
                self.closing(number)
        elif match := RPC.match(line):
            self.rpc_rules(number, match)
        elif self.scopes and self.scopes[-1][0] == "enum":
            if match := re.match(r"(\w+) = (-?\d+)", line):
                self.enum_value(number, match[1], int(match[2]))
        elif self.scopes and (match := FIELD.match(line)):
            self.field(number, match[1])

    def package_rules(self, number, package):
        self.package = package
        if "/".join(package.split(".")) != str(self.relative.parent):
            self.problem(number, f"package {package} does not match the folder {self.relative.parent}")
        if not re.fullmatch(r"v\d+((alpha|beta)\d*)?", package.rsplit(".", 1)[-1]):
            self.problem(number, f"package {package} does not end in a version like v1")

    def opening(self, number, kind, name, closed):
        pattern = LOWER_SNAKE if kind == "oneof" else PASCAL
        if not pattern.fullmatch(name):
            self.problem(number, f"{kind} {name} is not {'lower_snake' if kind == 'oneof' else 'PascalCase'}")
        if kind == "service":
            if not name.endswith("Service"):
                self.problem(number, f"service {name} does not end in Service")
            if not self.comment:
                self.problem(number, f"service {name} has no comment that says who may call it")
        if not closed:
            self.scopes.append((kind, name, " ".join(self.comment), []))

    def closing(self, number):
        kind, name, _, seen = self.scopes.pop()
        if kind == "enum" and not seen:
            self.problem(number, f"enum {name} is empty")

    def enum_value(self, number, name, value):
        _, enum, _, seen = self.scopes[-1]
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum).upper() + "_"
        if not name.startswith(prefix) or not UPPER_SNAKE.fullmatch(name):
            self.problem(number, f"enum value {name} does not begin with {prefix}")
        if not seen and (value != 0 or name != prefix + "UNSPECIFIED"):
            self.problem(number, f"the first value of enum {enum} is not {prefix}UNSPECIFIED = 0")
        seen.append(name)

    def field(self, number, name):
        if not LOWER_SNAKE.fullmatch(name):
            self.problem(number, f"field {name} is not lower_snake")

    def rpc_rules(self, number, match):
        name, request, response = match[1], match[3], match[5]
        service_comment = self.scopes[-1][2] if self.scopes else ""
        if not PASCAL.fullmatch(name):
            self.problem(number, f"rpc {name} is not PascalCase")
        if request != name + "Request" or response != name + "Response":
            self.problem(number, f"rpc {name} takes {request} and returns {response}, not {name}Request and "
                                 f"{name}Response")
        if not self.comment:
            self.problem(number, f"rpc {name} has no comment")
        elif not STATUS.search(" ".join(self.comment) + " " + service_comment):
            self.problem(number, f"neither rpc {name} nor its service says which status codes it returns")
        self.rpcs.append((self.package, name, request, response, number))


def check(root):
    """Problems of every .proto file under `root`, and across them."""
    problems, owners = [], {}
    for path in sorted(Path(root).rglob("*.proto")):
        proto = ProtoFile(path, Path(root))
        problems += proto.check()
        for package, name, request, response, number in proto.rpcs:
            for message in (request, response):
                owner = owners.setdefault((package, message), name)
                if owner != name:
                    problems.append(f"{path}:{number}: {message} is used by {owner} as well as by {name}")
    return problems
