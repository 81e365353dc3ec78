"""Type-checks the dashboards against Grafana's own schema (npm's @grafana/schema) with TypeScript.

What npm installs, in the versions of tools/dashboard_types/package-lock.json, goes into build/grafana-schema and is
kept there.
"""

import json
import re
import shutil
import subprocess

FILES = ("package.json", "package-lock.json", "tsconfig.json", "types.ts")


class NoTypes(Exception):
    """The schema cannot be had here, and why."""


def install(source, folder):
    """Brings the schema and the compiler into `folder`, unless they are there in these versions."""
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            raise NoTypes(f"{tool} is not installed (Debian's packages nodejs and npm)")
    folder.mkdir(parents=True, exist_ok=True)
    stamp, lock = folder / "installed", (source / "package-lock.json").read_text()
    if not stamp.exists() or stamp.read_text() != lock:
        for name in FILES:
            shutil.copyfile(source / name, folder / name)
        try:
            run = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1",
                                  "--fetch-timeout=30000"], cwd=folder, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoTypes("npm could not install @grafana/schema within 5 minutes") from error
        if run.returncode != 0:
            why = [line for line in run.stdout.splitlines() if line.startswith("npm ERR") or "error" in line]
            raise NoTypes(f"npm could not install @grafana/schema: {(why or ['no reason given'])[0]}")
        stamp.write_text(lock)
    for name in FILES:
        shutil.copyfile(source / name, folder / name)


def typescript(name, board, kinds):
    """A dashboard as constants of the types of types.ts; each panel for itself, so that an error names it."""
    lines = ["import type { Board, Panels } from './types';", ""]
    rest = {key: value for key, value in board.items() if key != "panels"}
    lines.append(f"export const board: Board = {json.dumps(rest)};")
    problems = []
    for panel in board["panels"]:
        if panel.get("type") not in kinds:
            problems.append(f"{name}: panel '{panel.get('title')}' is of kind '{panel.get('type')}', "
                            "which tools/dashboard_types/types.ts does not know")
            continue
        lines.append(f"export const panel{panel['id']}: Panels[{json.dumps(panel['type'])}] = {json.dumps(panel)};")
    return "\n".join(lines) + "\n", problems


def check(root):
    """All problems, each with the dashboard, and the panel's title."""
    source, folder = root / "tools/dashboard_types", root / "build/grafana-schema"
    install(source, folder)
    kinds = set(re.findall(r"PanelOf<'([\w-]+)'", (source / "types.ts").read_text()))
    for old in folder.glob("board_*.ts"):
        old.unlink()
    problems, titles = [], {}
    for path in sorted((root / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        text, found = typescript(path.name, board, kinds)
        problems += found
        (folder / f"board_{path.stem}.ts").write_text(text)
        titles.update({(path.stem, f"panel{panel['id']}"): panel.get("title") for panel in board["panels"]})
    run = subprocess.run(["node", "node_modules/typescript/bin/tsc", "-p", "."], cwd=folder, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)
    for line in run.stdout.splitlines() if run.returncode else []:
        place = re.match(r"board_(\w+)\.ts\((\d+),\d+\): error \w+: (.*)", line)
        if not place:
            problems.append(line if line.startswith(" ") else f"tools/dashboard_types: {line}")
            continue
        code = (folder / f"board_{place[1]}.ts").read_text().split("\n")[int(place[2]) - 1]
        constant = re.match(r"export const (\w+)", code)[1]
        what = f"panel '{titles[place[1], constant]}'" if constant != "board" else "beside its panels"
        problems.append(f"{place[1]}.json: {what}: {place[3]}")
    if run.returncode and not problems:
        problems.append(f"tsc ended with {run.returncode}")
    return problems
