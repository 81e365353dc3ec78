"""A dot plot of all ways as plain SVG, readable on light and dark grounds."""

import math
from xml.sax.saxutils import escape

LEFT, TOP, PANEL, GAP, ROW = 92, 96, 250, 22, 24
LEAST, MOST = 0.96, 5.0  # time over the bound; values beyond are drawn at the edge
TICKS = [1, 1.1, 1.25, 1.5, 2, 3, 5]
# Colour and shape of each family of ways. Shapes of tuned ways are filled.
FAMILIES = {"railsd": ("#d1242f", "diamond"), "ompi_tcp": ("#0969da", "circle"), "ompi_ucx": ("#1a7f37", "square"),
            "mpich_ucx": ("#9a6700", "triangle"), "gloo": ("#8250df", "circle")}
STYLE = """
  text { font: 12px sans-serif; fill: #1f2328; }
  .title { font-weight: bold; }
  .grid { stroke: #8c959f; stroke-opacity: 0.35; }
  .bound { stroke: #8c959f; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def family(name):
    return name.removesuffix("_tuned")


def mark(x, y, name, label):
    colour, shape = FAMILIES[family(name)]
    filled = name.endswith("_tuned") or name == "railsd"
    size = 6 if name == "railsd" else 4.5
    look = f'fill="{colour if filled else "none"}" stroke="{colour}" stroke-width="1.5"'
    title = f"<title>{escape(label)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" {look}>{title}</circle>'
    corners = {"diamond": [(0, -1), (1, 0), (0, 1), (-1, 0)], "square": [(-.9, -.9), (.9, -.9), (.9, .9), (-.9, .9)],
               "triangle": [(0, -1.1), (1.1, .9), (-1.1, .9)]}[shape]
    points = " ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in corners)
    return f'<polygon points="{points}" {look}>{title}</polygon>'


def place(value):
    """The place of a time over the bound within a panel. The axis is logarithmic from 0.9 on, which spreads values
    close to the bound."""
    return PANEL * math.log((min(max(value, LEAST), MOST) - 0.9) / (LEAST - 0.9)) / math.log((MOST - 0.9) / (LEAST - 0.9))


def panel(x, y, title, rows, ways):
    """`rows`: (label, values by way)."""
    out = [f'<text class="title" x="{x}" y="{y - 8}">{escape(title)}</text>']
    bottom = y + ROW * len(rows)
    for tick in TICKS:
        at = x + place(tick)
        out.append(f'<line class="{"bound" if tick == 1 else "grid"}" x1="{at:.1f}" y1="{y}" x2="{at:.1f}" y2="{bottom}"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
    for number, (_, values) in enumerate(rows):
        middle = y + ROW * (number + 0.5)
        # The daemons come last, on top of the others.
        for way in sorted(ways, key=lambda way: way.name == "railsd"):
            value = values.get(way.name)
            if value is not None:
                out.append(mark(x + place(value), middle, way.name, f"{way.label}: {value:.3f}"))
    return out


def plot(panels, ways):
    """An SVG. `panels`: rows of panels; each is a title and rows (label, values by way). All panels of a row have the
    same labels."""
    width = LEFT + max(map(len, panels)) * (PANEL + GAP)
    out, y = [], TOP
    for line in panels:
        for number, (label, _) in enumerate(line[0][1]):
            out.append(f'<text x="{LEFT - 10}" y="{y + ROW * (number + 0.5) + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for number, (title, rows) in enumerate(line):
            out += panel(LEFT + number * (PANEL + GAP), y, title, rows, ways)
        y += ROW * max(len(rows) for _, rows in line) + 56
    legend = []
    for number, way in enumerate(ways):
        x, at = LEFT + (number % 5) * 158, 44 + 20 * (number // 5)
        legend.append(mark(x, at, way.name, way.label))
        legend.append(f'<text x="{x + 10}" y="{at + 4}">{escape(way.label)}</text>')
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, LEFT + 5 * 158)} {y - 20}">', f"<style>{STYLE}</style>",
            f'<text class="title" x="{LEFT}" y="22">Time over the physical bound, less is better; beyond {MOST:g} at the edge</text>']
    return "\n".join(head + legend + out + ["</svg>"]) + "\n"
