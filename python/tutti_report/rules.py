"""Rules that the rows of a run must fulfil: "ROWS : METRIC OP VALUE", such as "all_reduce f32 >=64M : busbw >= 180",
"all_reduce <=8K : p99 <= 60us" or "* : wrong == 0"."""
import operator
import re

from tutti_report.runs import row_size, title
from tutti_report.texts import BYTES, MICROSECONDS, UsageError, parse_number, parse_quantity, plural

RELATIONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
RELATION = "(>=|<=|==|>|<)"
RULE = re.compile(rf"([^:]*\S[^:]*):\s*([^\s<>=]+)\s*{RELATION}\s*(\S.*?)\s*")
METRICS = {"time": ("mean", "min", "max", "stdev"), "bandwidth": ("algbw", "busbw"), "count": ("wrong", "n")}
UNITS = {"time": " µs", "bandwidth": " GB/s", "count": ""}


def kind_of(metric, what):
    for kind, names in METRICS.items():
        if metric in names:
            return kind
    if not metric.startswith("p"):
        known = ", ".join(name for names in METRICS.values() for name in names)
        raise UsageError(f"{what}: unknown metric '{metric}'; expected p50 or another percentile, {known}")
    parse_number(metric[1:], f"{what}: percentile", "a number above 0 and at most 100", lambda percent: 0 < percent <= 100)
    return "time"


def bound_of(text, kind, what):
    """In microseconds, GB/s or a number."""
    if kind == "time" and not text[-1].isdigit():
        return parse_quantity(text, MICROSECONDS, f"{what}: value", "a time such as 60us")
    if kind == "bandwidth":
        text = text.removesuffix("GB/s").strip()
    return parse_number(text, f"{what}: value", "a number, for times with or without a unit such as 60us")


def selection(word, what):
    """The test of a row and its run for a word of ROWS: a name, a size or a bound of it, or "*"."""
    relation, size = re.fullmatch(rf"{RELATION}?(.*)", word).groups()
    if word == "*":
        return lambda run, row: True
    if not relation and not word[0].isdigit():
        return lambda run, row: word in [run["backend"]["name"], *(row[name] for name in ("coll", "dtype", "op", "place", "layout"))]
    bound = parse_quantity(size, BYTES, f"{what}:", "one size in bytes, such as 64M")
    return lambda run, row: bool(row["dtype"]) and RELATIONS[relation or "=="](row["bytes"], bound)


def check_rule(rule, runs):
    """(whether it holds, what was found). All rows that are selected must fulfil the rule, and there must be one. Barrier
    has neither bandwidth nor wrong elements: such rules leave it out."""
    what = f"rule '{rule}'"
    parsed = RULE.fullmatch(rule)
    if not parsed:
        raise UsageError(f"{what}: expected ROWS : METRIC OP VALUE, such as 'all_reduce f32 >=64M : busbw >= 180'; OP is one of: "
                         + " ".join(RELATIONS))
    words, metric, relation, text = parsed.groups()
    tests = [selection(word, what) for word in words.split()]
    kind = kind_of(metric, what)
    bound = bound_of(text, kind, what)
    rows = [row for run in runs for row in run["results"] if all(test(run, row) for test in tests) and
            (row["dtype"] or not (kind == "bandwidth" or metric == "wrong"))]
    if not rows:
        return False, "no row matches"
    values = [(row["time_us"] if metric == "n" or kind == "time" else row).get(metric) for row in rows]
    failed = [value is None or not RELATIONS[relation](value, bound) for value in values]

    def badness(i):
        value = values[i]
        return failed[i], value is None, (0 if value is None else -value if relation.startswith(">") else value)

    worst = max(range(len(rows)), key=badness)
    value = f"no {metric}" if values[worst] is None else f"{values[worst]:.4g}{UNITS[kind]}"
    which, row = f"{sum(failed)} of " if any(failed) else "", rows[worst]
    return not any(failed), (f"{which}{plural(len(rows), 'row')}, worst {value}: {title(row)} {row_size(row)}, "
                             f"{plural(row['ranks'], 'rank')}")
