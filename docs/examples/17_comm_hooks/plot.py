"""Plots final loss against bytes per step, from the table in the README.

usage: plot.py [--write] README SVG

Compares the plot with SVG, or writes it with --write. The table is the output of comm_hooks, which
the tests compare with the README. A hook with a loss above 1 is named below the plot."""
import math
import pathlib
import re
import sys

ROW = re.compile(r"^\| (?P<hook>[^|]+?) +\| +(?P<bytes>\d+) \| +[\d.]+ % \| +(?P<loss>[\d.]+) \|$", re.M)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 110, 120, 60
X_TICKS = [1000, 2000, 5000, 10000, 20000, 30000]
Y_TICKS = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]


def x_of(count):
    share = math.log(count / X_TICKS[0]) / math.log(X_TICKS[-1] / X_TICKS[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(loss):
    share = (loss - Y_TICKS[0]) / (Y_TICKS[-1] - Y_TICKS[0])
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def text(x, y, content, attributes=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{content}</text>'


def plot(table):
    rows = [(match["hook"], int(match["bytes"]), float(match["loss"])) for match in ROW.finditer(table)]
    shown = [row for row in rows if row[2] <= 1]
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12" fill="#222">')
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    for tick in X_TICKS:
        x = x_of(tick)
        yield f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        yield text(x, HEIGHT - BOTTOM + 16, f"{tick}", 'text-anchor="middle"')
    for tick in Y_TICKS:
        y = y_of(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield text(LEFT - 8, y + 4, f"{tick:.2f}", 'text-anchor="end"')
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield text(middle, HEIGHT - BOTTOM + 34, "bytes that a rank sends per step", 'text-anchor="middle"')
    yield text(LEFT - 40, TOP - 12, "final loss", 'text-anchor="start"')
    points = {}  # Hooks at the same place share a label.
    for hook, count, loss in shown:
        points.setdefault((round(x_of(count)), round(y_of(loss))), []).append(hook)
    for (x, y), hooks in points.items():
        yield f'<circle cx="{x}" cy="{y}" r="4" fill="#1f5fa8"/>'
        yield text(x + 6, y - 6, ", ".join(hooks), f'transform="rotate(-35 {x + 6} {y - 6})"')
    rest = ", ".join(f"{hook} ({loss})" for hook, _, loss in rows if loss > 1)
    yield text(middle, HEIGHT - 8, f"outside of the plot: {rest}", 'text-anchor="middle" fill="#666"')
    yield "</svg>"


if __name__ == "__main__":
    readme, svg = (pathlib.Path(a) for a in sys.argv[1:] if a != "--write")
    made = "\n".join(plot(readme.read_text())) + "\n"
    if "--write" in sys.argv:
        svg.write_text(made)
    equal = svg.read_text() == made
    print("equal" if equal else f"{svg} is not the plot of the table; make it again with --write")
    sys.exit(0 if equal else 1)
