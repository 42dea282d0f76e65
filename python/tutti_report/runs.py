"""Runs of `tutti bench` as their JSON has them: dictionaries, checked when they are read."""
import glob
import json
import math
import os
import re

from tutti_report.texts import UsageError, size_text

# The kinds of a value: a text for errors, and the test. Other kinds are a list with the kind of its items, and a
# dictionary of fields, or of all names alike.
TEXT = ("a string", lambda value: isinstance(value, str))
FLAG = ("true or false", lambda value: isinstance(value, bool))
COUNT = ("a whole number of at least 0", lambda value: type(value) is int and 0 <= value < 2**63)
MANY = ("a whole number of at least 1", lambda value: type(value) is int and 1 <= value < 2**63)
NUMBER = ("a number of at least 0", lambda value: type(value) in (int, float) and 0 <= value and math.isfinite(value))
VERSION = ("1", lambda value: value == 1 and type(value) is int)
DATE = ("a date such as 2026-01-31T12:00:00Z",
        lambda value: isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value))
STATUSES = ("ok", "wrong_data", "timeout", "interrupted", "error")
STATUS = ("one of: " + " ".join(STATUSES), lambda value: value in STATUSES)
PERCENTILE = re.compile(r"p[\d.]+")

# A field whose name ends with "?" may be null or absent: then it is None, or an empty list or dictionary.
ROW = {
    "coll": TEXT, "dtype?": TEXT, "op?": TEXT, "place?": TEXT, "root?": COUNT, "layout?": TEXT, "counts?": [COUNT],
    "bytes": COUNT, "count": COUNT, "ranks": MANY,
    "time_us": {"n": MANY, **{name: NUMBER for name in ("mean", "min", "max", "stdev", "p50", "p90", "p99")}},
    "time_us_rank_mean?": [NUMBER], "algbw?": NUMBER, "busbw?": NUMBER, "wrong?": COUNT,
    "block_p50_us?": [NUMBER], "samples_us?": [NUMBER]}
TIMES = {"p50": NUMBER, "min": NUMBER}
RUN = {
    "schema_version": VERSION, "tool": {"version": TEXT, "git?": TEXT, "build?": TEXT}, "status": STATUS, "started": DATE,
    "env?": {str: TEXT}, "config": {}, "results": [ROW], "fit?": [{}],
    "backend": {"name": TEXT, "version": TEXT, "transport?": TEXT},
    "world": {"size": MANY, "hosts": MANY, "threads?": FLAG, "cpus?": COUNT, "oversubscribed?": FLAG,
              "ranks": [{"rank": COUNT, "host": TEXT, "device?": TEXT, "model?": TEXT}]},
    "links?": [{"from": COUNT, "to": COUNT, "latency_us": TIMES, "message_us": TIMES, "bandwidth_gbps": NUMBER}]}


def check(value, kind, file, path=""):
    """Checks a value and all below it, and fills in the optional fields."""
    def expected(what):
        found = f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}" if (
            isinstance(value, (list, dict)) and value) else json.dumps(value)
        raise UsageError(f"{file}: {path or 'the whole'}: expected {what}, found {found[:40]}{'...' * (len(found) > 40)}; "
                         "use a file of tutti bench --out FILE.json")

    if isinstance(kind, tuple):
        if not kind[1](value):
            expected(kind[0])
        return
    if not isinstance(value, type(kind)):
        expected("a list" if isinstance(kind, list) else "an object")
    if isinstance(kind, list):
        for i, item in enumerate(value):
            check(item, kind[0], file, f"{path}[{i}]")
        return
    for name, inner in ({name: kind[str] for name in value} if str in kind else kind).items():
        field = name.removesuffix("?")
        if field != name and value.get(field) is None:
            value[field] = type(inner)() if isinstance(inner, (list, dict)) else None
        elif field not in value:
            expected(f"an object with the field '{field}'")
        else:
            check(value[field], inner, file, f"{path}.{field}".lstrip("."))


def parse_run(text, file):
    """Ignores fields that it does not know. @throws UsageError naming the file, the field and what was expected."""
    try:
        run = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: expected the JSON of tutti bench --out FILE.json: {error}") from None
    check(run, RUN, file)
    for i, row in enumerate(run["results"]):
        percentiles = {name: NUMBER for name in row["time_us"] if PERCENTILE.fullmatch(name)}
        check(row["time_us"], percentiles, file, f"results[{i}].time_us")
    return {**run, "file": file}


def read_run(file):
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return parse_run(stream.read(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}; expected a file of tutti bench --out FILE.json") from None


def read_runs(files):
    """Reads "FILE", "FILE,FILE,..." or a directory, all of whose .json files are read."""
    names = sorted(glob.glob(os.path.join(glob.escape(files), "*.json"))) if os.path.isdir(files) else files.split(",")
    if not names:
        raise UsageError(f"{files}: no .json file is in this directory")
    return [read_run(name) for name in names]


def title(row):
    """ "all_reduce f32 sum", "broadcast f32 in-place root 1": without what is usual."""
    words = [row["coll"], row["dtype"], row["op"], row["place"] == "in" and "in-place", row["root"] and f"root {row['root']}",
             row["layout"] != "even" and row["layout"]]
    return " ".join(word for word in words if word)


def row_size(row):
    """ "1 KiB"; "-" for barrier, which has no size."""
    return size_text(row["bytes"]) if row["dtype"] else "-"
