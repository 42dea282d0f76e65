"""Plots final loss against bytes per step, from the table in the README.

usage: plot.py [--write] DRAW README SVG

Compares the plot with SVG, or writes it with --write. DRAW is the program tools/draw of a build. The
table is the output of comm_hooks, which the tests compare with the README. A hook with a loss above 1
is named below the plot."""
import json
import pathlib
import re
import subprocess
import sys

ROW = re.compile(r"^\| (?P<hook>[^|]+?) +\| +(?P<bytes>\d+) \| +[\d.]+ % \| +(?P<loss>[\d.]+) \|[^|]+\|[^|]+\|$",
                 re.M)


def plot(table, draw):
    points, rest = {}, []  # Hooks at nearly the same place share a name.
    for hook, count, loss in ROW.findall(table):
        if float(loss) > 1:
            rest.append(f"{hook} ({loss})")
        else:
            points.setdefault((int(count), round(float(loss), 3)), []).append(hook)
    lines = [{"name": ", ".join(hooks), "marks": [place], "joined": False} for place, hooks in points.items()]
    described = {"title": "comm hooks", "x": {"name": "bytes that a rank sends per step", "scale": "number"},
                 "y": {"name": "final loss", "scale": "number", "log": False}, "lines": lines,
                 "note": "outside of the plot: " + ", ".join(rest)}
    return subprocess.run([draw], input=json.dumps(described), text=True, capture_output=True, check=True).stdout


if __name__ == "__main__":
    draw, readme, image = (pathlib.Path(a) for a in sys.argv[1:] if a != "--write")
    made = plot(readme.read_text(), draw.resolve())
    if "--write" in sys.argv:
        image.write_text(made)
    equal = image.read_text() == made
    print("equal" if equal else f"{image} is not the plot of the table; make it again with --write")
    sys.exit(0 if equal else 1)
