"""Checks everything that uses the metrics: dashboards, rules, alerts, and the runbook that they link to."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

# Values in place of Grafana's variables, similar to those that Grafana puts there.
VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h", "$cluster": ".*", "$node": ".*",
             "$rail": ".*"}
NAME = re.compile(r"\b(?:\w+:)?railsd_\w+(?::\w+)?")
PARTS = re.compile(r"_(bucket|sum|count)$")


# A site replaces this by the address where it serves deploy/RUNBOOK.md.
RUNBOOK = "https://railsd.example/RUNBOOK.md"


class NoPromtool(Exception):
    """promtool is not installed."""


def table(root):
    """The type of each metric by name, from the page that the daemon prints from its table."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (root / "dashboards/METRICS.md").read_text(), re.MULTILINE)
    return dict(rows)


def recorded(rules):
    return set(re.findall(r"^\s*- record: (\S+)$", rules, re.MULTILINE))


def unknown_names(expression, metrics, records):
    """Names in an expression that are neither in the table nor recorded."""
    bad = []
    for name in NAME.findall(re.sub(r'"[^"]*"', '""', expression)):
        base = PARTS.sub("", name)
        if name not in records and name not in metrics and metrics.get(base) != "histogram":
            bad.append(name)
    return bad


def substituted(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def check_panel(where, panel):
    """Problems of a panel that lacks a title, a description, a unit or thresholds."""
    problems = [f"{where}: panel '{panel.get('title')}' has no {key}" for key in ("title", "description") if not
                panel.get(key)]
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    problems += [f"{where}: panel '{panel.get('title')}' has no {key}" for key in ("unit", "thresholds") if key not in
                 defaults]
    return problems


def check_dashboard(path, metrics, records):
    """Problems, and the expressions with variables substituted."""
    try:
        board = json.loads(path.read_text())
    except ValueError as error:
        return [f"{path.name}: {error}"], []
    problems, expressions = [], []
    known = {"$" + variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        problems += check_panel(path.name, panel)
        expressions += [target["expr"] for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in board["annotations"]["list"]]
    for expression in expressions:
        problems += [f"{path.name}: no metric '{name}': {expression}"
                     for name in unknown_names(expression, metrics, records)]
        problems += [f"{path.name}: no variable '{name}': {expression}" for name in re.findall(r"\$\w+", expression)
                     if name not in known and not name.startswith("$__")]
    return problems, [substituted(expression) for expression in expressions]


def promtool(*arguments, **options):
    """Runs promtool. Returns the lines of its output if it fails, otherwise none."""
    run = subprocess.run(["promtool", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False, **options)
    return run.stdout.splitlines() if run.returncode else []


def check_parse(expressions):
    """Problems that promtool finds in the expressions, which it gets as rules of a file."""
    rules = [{"record": f"lint:expression:{number}", "expr": expression}
             for number, expression in enumerate(sorted(set(expressions)))]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"groups": [{"name": "lint", "rules": rules}]}, file)  # JSON is YAML too
        file.flush()
        return promtool("check", "rules", file.name)


def check(root):
    """All problems."""
    if not shutil.which("promtool"):
        raise NoPromtool
    folder = root / "dashboards"
    rules = (folder / "rails.rules.yaml").read_text()
    metrics, records = table(root), recorded(rules)
    problems = [] if metrics else ["dashboards/METRICS.md: no table"]
    # Looks at `expr` only, because summaries and links are no expressions.
    for text in re.findall(r"expr: (.*?)\n\s+(?:for|labels|- record|- alert):|expr: >-\n(.*?)(?=\n\s+(?:for|labels|- )|\Z)",
                           rules, re.DOTALL):
        problems += [f"rails.rules.yaml: no metric '{name}'" for name in unknown_names("".join(text), metrics, records)]
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", (root / "deploy/RUNBOOK.md").read_text(),
                                                         re.MULTILINE)}
    for alert in re.findall(r"^\s*- alert: (\w+)$", rules, re.MULTILINE):
        if not alert.startswith("Railsd"):
            problems.append(f"rails.rules.yaml: alert {alert} does not begin with Railsd")
        if f"runbook_url: {RUNBOOK}#{alert.lower()}\n" not in rules or alert.lower() not in anchors:
            problems.append(f"rails.rules.yaml: alert {alert} has no entry in deploy/RUNBOOK.md")
        if rules.count(f"alert: {alert}\n") != 1 or f"alertname: {alert}\n" not in (
                folder / "rails.rules.test.yaml").read_text():
            problems.append(f"rails.rules.test.yaml: alert {alert} is not tested")
    expressions = []
    for path in sorted(folder.glob("*.json")):
        found, more = check_dashboard(path, metrics, records)
        problems += found
        expressions += more
    problems += check_parse(expressions)
    problems += promtool("check", "rules", folder / "rails.rules.yaml")
    problems += promtool("test", "rules", "rails.rules.test.yaml", cwd=folder)
    with open(Path(root) / "tests/unit/daemon/metrics/golden.prom", encoding="utf-8") as golden:
        problems += promtool("check", "metrics", stdin=golden)
    return problems
