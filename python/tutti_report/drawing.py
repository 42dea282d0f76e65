"""Draws plots and heat maps with matplotlib: of runs, and of the documents.

A plot is described as {"title", "note", "x": {"name", "scale", "log"}, "y", "lines": [{"name", "marks", "style", "thin",
"joined"}]}. A scale is bytes, us, gbps or number. A mark is [x, y] or [x, y, end of its band]. An SVG has the descriptions
as metadata, so that a test can compare a picture with its data, whatever the version of matplotlib."""
import html
import io
import json
import re
import warnings

from tutti_report.texts import size_text

# Of Okabe and Ito, darker where white needs it: they differ for all common kinds of color vision.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5308b", "#8a6d00", "#3a9bd0", "#6a4bc0", "#68727c")
DASHES = ("-", "--", ":")
GREY = 2 * len(COLORS) - 1  # With dashes.
DESCRIPTION = re.compile(r"<dc:description>(.*?)</dc:description>", re.S)


def tick_text(scale, value):
    if scale == "bytes":
        return size_text(round(value))
    units, factor = {"us": (("µs", "ms", "s"), 1), "gbps": (("B/s", "KB/s", "MB/s", "GB/s", "TB/s"), 1e9)}.get(scale, (("",), 1))
    value, unit = value * factor, 0
    while abs(value) > 999 and unit + 1 < len(units):
        value, unit = value / 1000, unit + 1
    return f"{value:.6g} {units[unit]}".strip()


def drawable(plot):
    """The lines with the marks that a logarithm can have."""
    def fits(mark):
        return all(value > 0 or not plot[axis].get("log", True) for axis, value in zip("xy", mark))

    lines = [{**line, "marks": [mark for mark in line["marks"] if fits(mark)]} for line in plot["lines"]]
    return [line for line in lines if line["marks"]]


def _draw_plot(axes, plot):
    axes.set_title(plot.get("title", ""), loc="left", fontweight="bold")
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        scale = plot[name]["scale"]
        if plot[name].get("log", True):
            (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=2 if scale == "bytes" else 10)
        axis.set_major_formatter(lambda value, _, scale=scale: tick_text(scale, value))
        axis.set_label_text(plot[name]["name"])
    axes.minorticks_off()
    for line in drawable(plot):
        style = line.get("style", 0)
        joined, thin, color = line.get("joined", True), line.get("thin", False), COLORS[style % len(COLORS)]
        x, y = [mark[0] for mark in line["marks"]], [mark[1] for mark in line["marks"]]
        axes.plot(x, y, color=color, linestyle=DASHES[style // len(COLORS) % 3] if joined else "none", label=line["name"],
                  marker="" if thin and joined else "os^"[style // len(COLORS) % 3], markersize=3, linewidth=1 if thin else 1.8)
        ends = [mark[-1] for mark in line["marks"]]
        if ends != y:
            axes.fill_between(x, y, ends, color=color, alpha=0.15, linewidth=0)
    axes.grid(color="#e2e2e2")
    if axes.has_data():
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_map(axes, map_):
    """A heat map: {"title", "note", "rows", "columns", "texts", "strengths" from 0 to 1}."""
    axes.set_title(map_["title"], loc="left", fontweight="bold")
    axes.imshow(map_["strengths"], vmin=0, vmax=1.4, cmap="Oranges", aspect="auto")
    axes.set_xticks(range(len(map_["columns"])), map_["columns"])
    axes.set_yticks(range(len(map_["rows"])), map_["rows"])
    for i, row in enumerate(map_["texts"] if len(map_["columns"]) <= 16 else []):
        for j, text in enumerate(row):
            axes.text(j, i, text, ha="center", va="center", fontsize="x-small")


def draw(plots, heading="", form="svg"):
    """The bytes of a picture of plots and heat maps, one below the other. `form`: svg, png or pdf."""
    import matplotlib  # Takes a second.
    from matplotlib.figure import Figure
    options = {"svg.fonttype": "none", "svg.hashsalt": "tutti", "font.size": 9, "axes.spines.top": False,
               "axes.spines.right": False, "text.parse_math": False}
    with matplotlib.rc_context(options), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Characters that the font lacks: the viewer of an SVG chooses the font.
        figure = Figure(figsize=(7.5, max(3.2 * len(plots), 1.5)))
        figure.suptitle(heading, x=0.01, ha="left", fontweight="bold")
        for i, plot in enumerate(plots):
            axes = figure.add_subplot(len(plots), 1, i + 1)
            (_draw_plot if "lines" in plot else _draw_map)(axes, plot)
            if plot.get("note"):
                axes.annotate(plot["note"], (0, 0), (0, -38), "axes fraction", "offset points", fontsize="small", color="#666")
        figure.subplots_adjust(hspace=0.7)
        file = io.BytesIO()
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(plots)} if form == "svg" else {}
        figure.savefig(file, format=form, bbox_inches="tight", metadata=metadata)
    return re.sub(rb"\s*\n\s*", b" ", file.getvalue()) if form == "svg" else file.getvalue()


def description(svg):
    """What draw() drew; None if the picture is not of it."""
    found = DESCRIPTION.search(svg)
    return found and json.loads(html.unescape(found[1]))
