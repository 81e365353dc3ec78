"""Predicted against measured completion times: a table for people, and a plain SVG, readable on light and dark grounds."""

import math
import statistics
from xml.sax.saxutils import escape

LEFT, TOP, SIDE = 64, 52, 520
LEAST = 0.4  # seconds, where the axes begin
TICKS = [0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10]
# Colour by the daemon's policy, shape by the state of the rails.
COLOURS = {"lpt": "#d1242f", "pinned": "#0969da"}
SHAPES = {"healthy": "circle", "slow": "square", "dead": "triangle"}
STYLE = """
  text { font: 12px sans-serif; fill: #1f2328; }
  .title { font-weight: bold; }
  .grid { stroke: #8c959f; stroke-opacity: 0.3; }
  .equal { stroke: #8c959f; }
  .band { fill: #1a7f37; fill-opacity: 0.13; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def row_of(point, target):
    """Name, predictions, measured, range of the steps, difference, and whether it is within the target, as texts."""
    name, forecast, packet, fluid, seconds = point
    value = statistics.median(seconds)
    difference = value / forecast - 1
    return (f"`{name}`", f"{fluid:.3f} s", f"{packet:.3f} s", f"{forecast:.3f} s", f"{value:.3f} s", f"{min(seconds):.3f} to {max(seconds):.3f}",
            f"{100 * difference:+.1f} %", "yes" if abs(difference) <= target else "**no**")


def table(points, target):
    """A Markdown table with a row for each (name, predicted seconds, by packets, by fluid, measured ones of the steps)."""
    rows = [("case", "fluid", "packet", "predicted", "measured", "steps", "difference", "met"), *(row_of(point, target) for point in points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def mark(x, y, colour, shape, title):
    look = f'fill="{colour}" fill-opacity="0.55" stroke="{colour}"'
    title = f"<title>{escape(title)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {look}>{title}</circle>'
    corners = {"square": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)], "triangle": [(0, -5.5), (5.5, 4.5), (-5.5, 4.5)]}
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners[shape])
    return f'<polygon points="{points}" {look}>{title}</polygon>'


def plot(points, target):
    """An SVG with logarithmic axes: the prediction to the right, the median of the measured steps upwards."""
    most = 1.15 * max(max(forecast, statistics.median(seconds)) for _, forecast, *_, seconds in points)

    def place(seconds):
        return SIDE * math.log(seconds / LEAST) / math.log(most / LEAST)

    def at(forecast, value):
        return LEFT + place(forecast), TOP + SIDE - place(value)

    band = [(LEAST, LEAST), (LEAST, LEAST * (1 + target)), (most / (1 + target), most), (most, most),
            (most, most * (1 - target)), (LEAST / (1 - target), LEAST)]
    out = ['<polygon class="band" points="' + " ".join("{:.1f},{:.1f}".format(*at(*corner)) for corner in band) + '"/>']
    for tick in (tick for tick in TICKS if tick < most):
        x, y = at(tick, tick)
        out += [f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + SIDE}"/>',
                f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + SIDE}" y2="{y:.1f}"/>',
                f'<text x="{x:.1f}" y="{TOP + SIDE + 18}" text-anchor="middle">{tick:g} s</text>',
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g} s</text>']
    out.append(f'<line class="equal" x1="{LEFT}" y1="{TOP + SIDE}" x2="{LEFT + SIDE}" y2="{TOP}"/>')
    for name, forecast, *_, seconds in points:
        state = next((state for state in SHAPES if name.startswith(f"{state}.")), "healthy")
        policy = next(policy for policy in COLOURS if f".{policy}." in name)
        value = statistics.median(seconds)
        out.append(mark(*at(forecast, value), COLOURS[policy], SHAPES[state],
                        f"{name}: predicted {forecast:.3f} s, measured {value:.3f} s, {100 * (value / forecast - 1):+.1f} %"))
    legend = [(colour, "circle", policy) for policy, colour in COLOURS.items()]
    legend += [("#6e7781", shape, {"healthy": "healthy", "slow": "a slow rail", "dead": "a dead rail"}[state])
               for state, shape in SHAPES.items()]
    for number, (colour, shape, label) in enumerate(legend):
        x, y = LEFT + 20 + 100 * (number % 5), 36
        out += [mark(x, y, colour, shape, label), f'<text x="{x + 10}" y="{y + 4}">{label}</text>']
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SIDE + 24} {TOP + SIDE + 46}">', f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="20">Measured (upwards) against predicted time; the band is {100 * target:g} %</text>',
        *out, f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 38}" text-anchor="middle">predicted</text>', "</svg>"]) + "\n"
