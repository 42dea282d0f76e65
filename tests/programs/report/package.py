"""Finds the package tutti_report of the sources, and makes runs for it. A test without its modules is skipped."""
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
if missing := [name for name in ("numpy", "scipy", "matplotlib") if importlib.util.find_spec(name) is None]:
    print(f"skipped: the python3 in PATH has no {', '.join(missing)}")
    sys.exit(77)


def a_row(p50=1.0, **changes):
    times = {"n": 100, "mean": p50 + 1, "min": p50 - 1 if p50 > 1 else 0, "max": p50 + 9, "stdev": 2, "p50": p50, "p90": p50 + 2,
             "p99": p50 + 3}
    return {"coll": "all_reduce", "dtype": "f32", "op": "sum", "place": "out", "root": None, "layout": None, "counts": None,
            "bytes": 1024, "count": 256, "ranks": 2, "time_us": times, "time_us_rank_mean": [3, 5], "algbw": 1, "busbw": 1,
            "wrong": 0, "flags": [], "block_p50_us": [], **changes}


def a_barrier():
    return a_row(3, coll="barrier", dtype=None, op=None, place=None, bytes=0, count=0, algbw=None, busbw=None, wrong=None)


def a_run(*rows, backend="gloo", **changes):
    """A run as parse_run() returns it."""
    from tutti_report import runs
    run = {"schema_version": 1, "tool": {"version": "0.1.0"}, "status": "ok", "started": "2026-01-31T12:00:00Z",
           "backend": {"name": backend, "version": "1"}, "config": {"mode": "throughput"}, "results": list(rows),
           "world": {"size": 2, "hosts": 1, "ranks": [{"rank": rank, "host": "vm"} for rank in range(2)]}, "file": "r.json",
           **changes}
    runs.check(run, runs.RUN, "r.json")
    return run
