"""Type-checks the dashboards against Grafana's own schema (npm's @grafana/schema) with TypeScript.

npm installs the versions of tools/dashboard_types/package-lock.json into build/grafana-schema, where they are kept.
"""

import json
import re

import npm

NoTypes = npm.NoTypes


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
    npm.install(source, folder, "@grafana/schema")
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
    for line in npm.check_types(folder):
        place = re.match(r"board_(\w+)\.ts\((\d+),\d+\): error \w+: (.*)", line)
        if not place:
            problems.append(line if line.startswith(" ") else f"tools/dashboard_types: {line}")
            continue
        code = (folder / f"board_{place[1]}.ts").read_text().split("\n")[int(place[2]) - 1]
        constant = re.match(r"export const (\w+)", code)[1]
        what = f"panel '{titles[place[1], constant]}'" if constant != "board" else "beside its panels"
        problems.append(f"{place[1]}.json: {what}: {place[3]}")
    return problems
