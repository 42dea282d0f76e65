"""The plots of runs, as drawing.py describes plots."""
import os

import numpy as np

from tutti_report.drawing import GREY
from tutti_report.runs import row_size, title
from tutti_report.texts import gbps_text, plural, us_text

MOST_DOTS, MOST_RANKS = 600, 32


def names_of_runs(runs):
    """A short name for each run that no other has: the backend, or else the file."""
    kinds = (lambda run: run["backend"]["name"], lambda run: f"{run['backend']['name']}, {plural(run['world']['size'], 'rank')}",
             lambda run: os.path.splitext(os.path.basename(run["file"]))[0], lambda run: run["file"])
    for kind in kinds:
        names = [kind(run) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{i + 1}: {name}" for i, name in enumerate(names)]


def sweeps_of(runs):
    """{title: {name of a line: its rows by size}}. Of one run a sweep is a collective, and its lines are the dtypes,
    operations and so on; of several it is a call, and its lines are the runs."""
    sweeps = {}
    for run, name in zip(runs, names_of_runs(runs)):
        for row in run["results"]:
            place = (row["coll"], title(row)) if len(runs) == 1 else (title(row), name)
            sweeps.setdefault(place[0], {}).setdefault(place[1], []).append(row)
    if len(runs) == 1:
        sweeps = {coll if len(lines) > 1 else next(iter(lines)):
                  {name.removeprefix(coll + " ") if len(lines) > 1 else names_of_runs(runs)[0]: rows for name, rows in lines.items()}
                  for coll, lines in sweeps.items()}
    return {sweep: {name: sorted(rows, key=lambda row: row["bytes"]) for name, rows in lines.items()}
            for sweep, lines in sweeps.items()}


def size_plots(sweep, lines, fits=()):
    """Time and bus bandwidth against size: the line is p50, the band reaches to p99. A single line has its fit."""
    times, speeds, notes = [], [], []
    for style, (name, rows) in enumerate(lines.items()):
        sized = [row for row in rows if row["dtype"] and row["bytes"]]
        notes += [f"{name}: p50 {us_text(row['time_us']['p50'])} µs, p99 {us_text(row['time_us']['p99'])} µs"
                  for row in rows if row not in sized]
        times.append({"name": name, "style": style, "marks": [
            [row["bytes"], row["time_us"]["p50"], row["time_us"]["p99"]] for row in sized]})

        def speed(row, us):
            """The busbw is that of the mean time over ranks."""
            return row["busbw"] * float(np.mean(row["time_us_rank_mean"] or row["time_us"]["mean"])) / max(us, 1e-3)

        speeds.append({"name": name, "style": style, "marks": [
            [row["bytes"], speed(row, row["time_us"]["p50"]), speed(row, row["time_us"]["p99"])]
            for row in sized if row["busbw"] is not None]})
    if len(lines) == 1:
        rows = next(iter(lines.values()))
        for fit in fits:
            if all(fit.get(field) == rows[0][field] for field in ("coll", "dtype", "op", "place", "root", "layout")):
                notes.append(f"fit: t = {us_text(fit['alpha_us'])} µs + S / {fit['beta_GBps']:.3g} GB/s")
                times.append({"name": "fit", "style": GREY, "thin": True, "marks": [
                    [row["bytes"], fit["alpha_us"] + row["bytes"] / fit["beta_GBps"] / 1e3] for row in rows]})
    has_speed = any(line["marks"] for line in speeds)
    if not has_speed and any(line["marks"] for line in times):
        notes.append("no bus bandwidth: no byte crosses a link")
    size = {"name": "size", "scale": "bytes"}
    plots = [{"title": sweep, "note": "; ".join(notes), "x": size, "y": {"name": "time of a call", "scale": "us"}, "lines": times},
             {"title": sweep, "x": size, "y": {"name": "bus bandwidth", "scale": "gbps"}, "lines": speeds}]
    return plots[:1 + has_speed]


def sample_plot(sweep, lines):
    """The iterations of runs with --samples all, of the size of each line with the widest spread; None without them."""
    dots, most = [], 1
    for style, (name, rows) in enumerate(lines.items()):
        rows = [row for row in rows if row["samples_us"]]
        if not rows:
            continue
        widest = max(rows, key=lambda row: row["time_us"]["p99"] / max(row["time_us"]["p50"], 1e-3))
        samples = np.array(widest["samples_us"])
        step = -(-len(samples) // MOST_DOTS)
        slowest = [first + int(samples[first:first + step].argmax()) for first in range(0, len(samples), step)]
        dots.append({"name": f"{name}, {row_size(widest)}", "style": style, "joined": False,
                     "marks": [[i + 1, float(samples[i])] for i in slowest]})
        most = max(most, step)
    note = f"a dot is the slowest of up to {most} iterations" if most > 1 else ""
    return {"title": f"{sweep}, iterations", "note": note, "x": {"name": "iteration", "scale": "number", "log": False},
            "y": {"name": "time of a call", "scale": "us"}, "lines": dots} if dots else None


def rank_map(name, rows):
    """How much slower each rank is than the median rank, for every size; None for one rank."""
    ranks = len(rows[0]["time_us_rank_mean"])
    if ranks < 2 or any(len(row["time_us_rank_mean"]) != ranks for row in rows):
        return None
    times = np.array([row["time_us_rank_mean"] for row in rows]).T  # [rank, size]
    excess = times / np.maximum(np.median(times, axis=0), 1e-3) - 1
    shown = sorted(np.argsort(-excess.max(axis=1), kind="stable")[:MOST_RANKS].tolist())
    few = f"; the {MOST_RANKS} slowest of {ranks} ranks" if ranks > MOST_RANKS else ""
    return {"title": f"{name}: slowdown of ranks", "note": f"mean time of a rank beside the median rank's{few}", "rows": shown,
            "columns": [row_size(row) for row in rows], "strengths": excess[shown].tolist(),
            "texts": [["0%" if abs(value) < 0.005 else f"{value:+.0%}" for value in excess[rank]] for rank in shown]}


def link_maps(run):
    """The links of a run with --links; the darker, the slower than the median."""
    ranks = range(run["world"]["size"])
    links = {(link["from"], link["to"]): link for link in run["links"]}
    for what, field, text in (("latency in µs", "latency_us", lambda link: us_text(link["latency_us"]["p50"])),
                              ("bandwidth in GB/s", "message_us", lambda link: gbps_text(link["bandwidth_gbps"]))):
        if links:
            usual = max(float(np.median([link[field]["p50"] for link in links.values()])), 1e-3)
            cells = [[links.get((a, b)) for b in ranks] for a in ranks]
            yield {"title": f"links: {what}", "note": "a row sends, a column receives", "rows": [*ranks], "columns": [*ranks],
                   "texts": [[text(link) if link else "" for link in row] for row in cells],
                   "strengths": [[np.log2(max(link[field]["p50"] / usual, 1)) / 4 if link else 0 for link in row] for row in cells]}


def plots_of(runs):
    """Of each sweep time, bandwidth, iterations and ranks, then the links."""
    plots, fits = [], runs[0]["fit"] if len(runs) == 1 else ()
    for sweep, lines in sweeps_of(runs).items():
        plots += [*size_plots(sweep, lines, fits), sample_plot(sweep, lines), *(rank_map(*line) for line in lines.items())]
    return [plot for plot in plots if plot] + [map_ for run in runs for map_ in link_maps(run)]
