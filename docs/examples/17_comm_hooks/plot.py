"""Plots final loss against bytes per step, from the table in the README.

usage: plot.py [--write] README SVG

Compares the plot with SVG, or writes it with --write. The table is the output of comm_hooks, which
the tests compare with the README. A hook with a loss above 1 is named below the plot."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
import svg  # noqa: E402

ROW = re.compile(r"^\| (?P<hook>[^|]+?) +\| +(?P<bytes>\d+) \| +[\d.]+ % \| +(?P<loss>[\d.]+) \|[^|]+\|[^|]+\|$",
                 re.M)
X_TICKS = [1000, 2000, 5000, 10000, 20000, 30000]
Y_TICKS = [0.0, 0.02, 0.04, 0.06, 0.08]


def plot(table):
    rows = [(match["hook"], int(match["bytes"]), float(match["loss"])) for match in ROW.finditer(table)]
    made = svg.Plot(svg.Axis("bytes that a rank sends per step", ((tick, str(tick)) for tick in X_TICKS), log=True),
                    svg.Axis("final loss", ((tick, f"{tick:.2f}") for tick in Y_TICKS)), top=120)
    points = {}  # Hooks at the same place share a label.
    for hook, count, loss in rows:
        if loss <= 1:
            points.setdefault((round(made.x_of(count)), round(made.y_of(loss))), []).append((hook, count, loss))
    for (x, y), hooks in points.items():
        made.dot(*hooks[0][1:], 'r="4" fill="#1f5fa8"')
        names = ", ".join(hook for hook, _, _ in hooks)
        made.text(x + 6, y - 6, names, f'transform="rotate(-35 {x + 6} {y - 6})"')
    rest = ", ".join(f"{hook} ({loss})" for hook, _, loss in rows if loss > 1)
    made.text(made.middle, made.height - 8, f"outside of the plot: {rest}", 'text-anchor="middle" fill="#666"')
    return made.end()


if __name__ == "__main__":
    readme, image = (pathlib.Path(a) for a in sys.argv[1:] if a != "--write")
    made = plot(readme.read_text())
    if "--write" in sys.argv:
        image.write_text(made)
    equal = image.read_text() == made
    print("equal" if equal else f"{image} is not the plot of the table; make it again with --write")
    sys.exit(0 if equal else 1)
