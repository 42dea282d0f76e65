"""The comparison of two lists of runs, OLD and NEW, row by row."""
import math
import random
import subprocess
import sys
import time

import numpy as np

from tutti_report.runs import parse_run, row_size, title
from tutti_report.statistics import adjusted, interval, rank_sum_p, signed_rank_p
from tutti_report.texts import UsageError, plural, us_text

# The level of all rows together: in 1 of 100 comparisons of equal programs, any row is called different.
LEVEL = 0.01
LEAST_US = 1e-3  # The clock's resolution.
KEY = ("coll", "dtype", "op", "place", "root", "layout", "counts", "bytes", "ranks")
SHOWN = ("call", "size", "old µs", "new µs", "change", "95% interval", "result")
WIDTHS = (10, 12, 12, 10, 18, 9)


def settings_of(run):
    """What may explain a difference between runs, other than the code."""
    world, backend = run["world"], run["backend"]
    found = {"status": run["status"], "backend": backend["name"], "ranks": world["size"],
             **{name: " ".join(sorted({str(rank[field]) for rank in world["ranks"]}))
                for name, field in (("host names", "host"), ("models", "model"), ("devices", "device"))},
             **{name: world[name] for name in ("hosts", "threads", "cpus", "oversubscribed")},
             **{f"tool.{name}": run["tool"][name] for name in ("version", "git", "build")},
             **{f"backend.{name}": backend[name] for name in ("version", "transport")},
             **{f"config.{name}": value for name, value in run["config"].items() if name not in ("samples", "percentiles")},
             **run["env"]}
    return {name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items() if value not in (None, "")}


def differences_of(old_runs, new_runs):
    old, new = [[settings_of(run) for run in runs] for runs in (old_runs, new_runs)]

    def values(side, name):
        return " or ".join(sorted({settings.get(name, "unset") for settings in side}))

    names = sorted({name for settings in old + new for name in settings})
    return [f"{name}: {values(old, name)} -> {values(new, name)}" for name in names if values(old, name) != values(new, name)]


def row_text(row, backend=None):
    size = f" {row_size(row)}" if row["dtype"] else ""
    return f"{title(row)}{size}, {plural(row['ranks'], 'rank')}" + (f", {backend}" if backend else "")


def side_of(runs, with_backend):
    """The rows of each key, by the number of their run."""
    side = {}
    for i, run in enumerate(runs):
        for row in run["results"]:
            key = (*(str(row[name] or 0) for name in KEY), run["backend"]["name"] if with_backend else None)
            side.setdefault(key, {}).setdefault(i, row)
    return side


def units_of(rows, unit):
    first = next(iter(rows.values()))
    blocks, samples = first["block_p50_us"], first["samples_us"]
    if samples and not blocks:
        blocks = [np.median(block) for block in np.array_split(samples, min(20, len(samples)))]
    units = blocks if blocks and unit == "block" else [row["time_us"]["p50"] for row in rows.values()]
    return [max(us, LEAST_US) for us in units]


def compare_rows(old_rows, new_rows, unit, backend):
    row = next(iter(new_rows.values()))
    if unit == "round":
        both = old_rows.keys() & new_rows.keys()
        old_rows, new_rows = ({i: rows[i] for i in sorted(both)} for rows in (old_rows, new_rows))
    found = {"call": f"{title(row)}  {plural(row['ranks'], 'rank')}" + (f"  {backend}" if backend else ""),
             **{name: None if row[name] == [] else row[name] for name in KEY},
             "backend": backend, "size": row_size(row)}
    old, new = (np.array(units_of(rows, unit) if rows else []) for rows in (old_rows, new_rows))
    found |= {"old_p50_us": 0.0, "new_p50_us": 0.0, "old_units": len(old), "new_units": len(new), "ratio": 1.0,
              "interval": None, "p": 1.0}
    if not len(old):  # Rows of rounds that never met.
        return found
    found |= {"old_p50_us": float(np.median(old)), "new_p50_us": float(np.median(new))}
    if unit == "round":
        ratios = np.log(new / old)
        found |= {"ratio": float(np.exp(np.median(ratios))), "p": signed_rank_p(ratios)}
        ends = interval(lambda draws: np.exp(np.median(draws, axis=1)), ratios)
    else:
        found |= {"ratio": found["new_p50_us"] / found["old_p50_us"], "p": rank_sum_p(old, new)}
        ends = interval(lambda a, b: np.median(a, axis=1) / np.median(b, axis=1), new, old)
    if len(old) > 1 and len(new) > 1:
        found["interval"] = {"low": float(ends[0]), "high": float(ends[1])}
    return found


def result_of(row, threshold):
    """Slower or faster: the ratio is beyond the threshold, p is below the level and the interval does not contain 1. The
    same: the interval is within the threshold."""
    if not row["interval"]:
        return "noisy"
    low, high = row["interval"]["low"], row["interval"]["high"]
    if row["p"] < LEVEL and row["ratio"] >= 1 + threshold and low > 1:
        return "slower"
    if row["p"] < LEVEL and row["ratio"] <= 1 - threshold and high < 1:
        return "faster"
    return "same" if low > 1 - threshold and high < 1 + threshold else "noisy"


def notes_of(rows, unit):
    if unit == "block":
        yield ("one run on each side: the intervals do not contain the difference between runs of the same program; name "
               "several files, or use tutti compare --run")
        if not all(row["interval"] for row in rows):
            yield "rows without an interval have a single sample, or were saved without block_p50_us"
        return
    fewest = min(min(row["old_units"], row["new_units"]) for row in rows)
    needed = 1  # Units on each side, whose smallest p is below the level.
    while 2 * len(rows) / (2**needed if unit == "round" else math.comb(2 * needed, needed)) >= LEVEL:
        needed += 1
    if fewest < needed:
        yield (f"{plural(len(rows), 'row')} with {plural(fewest, unit)} on each side: a difference can be significant from "
               f"{needed} on")


def compare(old_runs, new_runs, threshold, paired=False, names=("", "")):
    """The comparison as JSON has it. `paired`: runs of the same number followed each other, in random order. The units are
    rounds then, otherwise runs, or the blocks of iterations of one run on each side."""
    unit = "round" if paired else "block" if len(old_runs) == len(new_runs) == 1 else "run"
    with_backend = any(run["backend"]["name"] != runs[0]["backend"]["name"] for runs in (old_runs, new_runs) for run in runs)
    old, new = side_of(old_runs, with_backend), side_of(new_runs, with_backend)
    rows = [compare_rows(old[key], new[key], unit, key[-1]) for key in old if key in new]
    for row, p in zip(rows, adjusted([row["p"] for row in rows])):
        row["p"] = float(p)
        row["result"] = result_of(row, threshold)

    def alone(side, other):
        return [row_text(next(iter(rows.values())), key[-1]) for key, rows in side.items() if key not in other]

    return {"schema_version": 1, "old": names[0], "new": names[1], "threshold": threshold, "unit": unit,
            "differences": differences_of(old_runs, new_runs), "only_old": alone(old, new), "only_new": alone(new, old),
            "wrong": [f"{run['file']}: {row_text(row)}: {plural(row['wrong'], 'wrong element')}"
                      for run in [*old_runs, *new_runs] for row in run["results"] if row["wrong"]],
            "notes": list(notes_of(rows, unit)) if rows else [], "results": rows}


def count(comparison, result):
    return sum(row["result"] == result for row in comparison["results"])


def exit_code(comparison, strict=False):
    """2: a row is wrong. 1: a row is slower or no row is on both sides; `strict`: or a row is too noisy or only in OLD."""
    if comparison["wrong"]:
        return 2
    unclear = strict and (count(comparison, "noisy") or comparison["only_old"])
    return int(bool(not comparison["results"] or count(comparison, "slower") or unclear))


def summary(comparison):
    rows = comparison["results"]
    if not rows:
        return "no row is on both sides"
    rounds = f" over {plural(rows[0]['new_units'], 'round')}" if comparison["unit"] == "round" else ""
    return (f"{count(comparison, 'slower')} of {plural(len(rows), 'row')} slower by {comparison['threshold'] * 100:g}% or more "
            f"(p < {LEVEL:g}){rounds}; {count(comparison, 'faster')} faster, {count(comparison, 'same')} the same, "
            f"{count(comparison, 'noisy')} too noisy to tell")


def remarks(comparison):
    for name, words in (("wrong", "wrong data"), ("differences", "differs"), ("only_old", "only in OLD"),
                        ("only_new", "only in NEW"), ("notes", "note")):
        yield from (f"{words}: {each}" for each in comparison[name])


def cells(row):
    """The columns of SHOWN."""
    def percent(ratio):
        return f"{(ratio - 1) * 100:+.{1 if ratio < 2 else 0}f}"

    ends = row["interval"]
    return (row["call"], row["size"], us_text(row["old_p50_us"]), us_text(row["new_p50_us"]), percent(row["ratio"]) + "%",
            f"[{percent(ends['low'])}, {percent(ends['high'])}]" if ends else "none",
            "SLOWER" if row["result"] == "slower" else row["result"])


def run_rounds(old_command, new_command, rounds, max_total):
    """Runs of both commands; those of the same number followed each other. The first of a round is random, but in two
    rounds each is first once: a machine that gets steadily slower treats both alike. The number of rounds does not depend
    on what was measured. @return (runs of OLD, runs of NEW), or the exit code of a command that fails."""
    def with_options(command):
        if " -f " in command or "--format" in command:
            raise UsageError(f"--run '{command}': -f json is added at its end; leave out -f")
        # Many short runs say more than a few long ones.
        return command + " -f json -q" + ("" if "--min-time" in command or "--iters" in command else " --min-time 50ms")

    sides = [(command, with_options(command), []) for command in (old_command, new_command)]
    start, longest, first, done = time.monotonic(), 0.0, 0, 0
    while done < (rounds or 1000):
        before = time.monotonic()
        if not rounds and done and before - start + longest > max_total:
            break
        first = random.randrange(2) if done % 2 == 0 else 1 - first
        for command, with_json, runs in (sides[first], sides[1 - first]):
            ended = subprocess.run(with_json, shell=True, stdout=subprocess.PIPE, text=True)
            if ended.returncode:
                code = ended.returncode if ended.returncode > 0 else 128 - ended.returncode
                print(f"error: '{command}' ended with {code}", file=sys.stderr)
                return code if code > 3 else 70  # 1 to 3 would be results of the comparison.
            runs.append(parse_run(ended.stdout, f"output of '{command}'"))
        longest, done = max(longest, time.monotonic() - before), done + 1
    return sides[0][2], sides[1][2]
