"""tutti-report: compare, check and report, which `tutti` starts too."""
import json
import sys
import textwrap

from tutti_report.arguments import FORMATS, PICTURES, parser
from tutti_report.texts import MICROSECONDS, UsageError, parse_quantity, parse_share, plural, write_file

MISSING = ""  # Help and wrong usage need no other package.
try:
    from tutti_report import comparison
    from tutti_report.drawing import draw
    from tutti_report.figures import plots_of
    from tutti_report.rules import check_rule
    from tutti_report.runs import read_run, read_runs
except ImportError as error:
    MISSING = f"error: tutti-report needs numpy, scipy and matplotlib: {error}"


def table_of(compared):
    text = f"tutti compare\n  old: {compared['old']}\n  new: {compared['new']}\n"
    for line in comparison.remarks(compared):
        text += textwrap.fill(f"! {line}", 80, initial_indent="  ", subsequent_indent=" " * 8, break_long_words=False,
                              break_on_hyphens=False) + "\n"

    def line(cells):
        return "".join(f"{cell:>{width}}" for cell, width in zip(cells, comparison.WIDTHS)) + "\n"

    call = None
    for row in compared["results"]:
        if row["call"] != call:
            call = row["call"]
            text += f"\n{call}\n{line(comparison.SHOWN[1:])}"
        text += line(comparison.cells(row)[1:])
    return f"{text}\n{comparison.summary(compared)}\n"


def render(compared, form):
    if form == "table":
        return table_of(compared)
    if form == "json":
        return json.dumps(compared, indent=2, ensure_ascii=False) + "\n"
    lines = [f"### {comparison.summary(compared)}\n", f"* old: `{compared['old']}`", f"* new: `{compared['new']}`",
             *(f"* {line}" for line in comparison.remarks(compared))]
    if compared["results"]:
        cells = [comparison.SHOWN, ("---", *["---:"] * 6), *map(comparison.cells, compared["results"])]
        lines += ["", *("| " + " | ".join(row) + " |" for row in cells)]
    return "\n".join(lines) + "\n"


def run_compare(options):
    threshold = parse_share(options.threshold, "--threshold")
    endings = {file: file.rpartition(".")[2] for file in options.out}
    for file, ending in endings.items():
        if ending not in FORMATS[1:]:
            raise UsageError(f"--out {file}: its name must end in .json or .md")
    if options.rounds and not options.run:
        raise UsageError(f"--rounds {options.rounds}: needs --run and two commands")
    max_total = parse_quantity(options.max_total, MICROSECONDS, "--max-total", "a duration such as 60s") / 1e6
    sides = (options.old, options.new)
    if options.run:
        runs = comparison.run_rounds(*sides, options.rounds, max_total)
        if isinstance(runs, int):
            return runs
    else:
        runs = map(read_runs, sides)
    compared = comparison.compare(*runs, threshold, options.run, sides)
    print(render(compared, options.format), end="")
    for file, ending in endings.items():
        write_file(file, render(compared, ending).encode())
    return comparison.exit_code(compared, options.strict)


def run_check(options):
    if not options.require and not options.baseline:
        raise UsageError(f"check {options.runs}: nothing to check; add --require RULE or --baseline OLD")
    tolerance = parse_share(options.tolerance, "--tolerance")
    runs = read_runs(options.runs)
    results = [(run["file"], False, f"status {run['status']}") for run in runs if run["status"] != "ok"]
    results += [(rule, *check_rule(rule, runs)) for rule in options.require]
    if options.baseline:
        compared = comparison.compare(read_runs(options.baseline), runs, tolerance, names=(options.baseline, options.runs))
        print(table_of(compared))
        holds = comparison.exit_code(compared) == 0 and not compared["only_old"]
        results.append((f"--baseline {options.baseline}", holds, comparison.summary(compared)))
    for rule, holds, found in results:
        print(f"{'PASS' if holds else 'FAIL'}  {rule}  ({found})")
    return int(not all(holds for _, holds, _ in results))


def run_report(options):
    form = options.out.rpartition(".")[2]
    if form not in PICTURES:
        raise UsageError(f"report -o '{options.out}': its name must end in .svg, .png or .pdf")
    runs = [read_run(file) for file in options.files]
    ranks = plural(runs[0]["world"]["size"], "rank")
    what = f"{ranks}  {runs[0]['backend']['name']}" if len(runs) == 1 else plural(len(runs), "run")
    write_file(options.out, draw(plots_of(runs), f"tutti bench: {what}", form))
    return 0


def main():
    try:
        options = parser().parse_args()
        if MISSING:
            print(MISSING, file=sys.stderr)
            return 69
        return {"compare": run_compare, "check": run_check, "report": run_report}[options.command](options)
    except UsageError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
