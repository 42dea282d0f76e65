"""Makes the tables and plots of docs/performance.md, and README's table, from the runs of contest.py.

    report.py [--write] RUNS PAGE

A table stands between "<!-- made: NAME ARGUMENTS -->" and "<!-- end -->" in PAGE; a plot in the folder of the page's
name. Without --write the page and the descriptions of the plots are compared with the runs; --write needs matplotlib.
Noisy cells are refused."""
import argparse
import json
import pathlib
import re
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))

from tutti_report.drawing import description, draw  # noqa: E402

MADE = re.compile(r"(<!-- made: (.*?) -->\n)(.*?)(<!-- end -->)", re.S)
# The library's ways between processes of one host, and the one between threads.
KIB, MIB = 1 << 10, 1 << 20
OURS = ("tutti shm memory", "tutti shm", "tutti local")


def size_name(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def number(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def row(*columns):
    return "| " + " | ".join(columns) + " |"


def is_peer(name):
    return name != "limit" and not name.startswith("tutti")


class Runs:
    def __init__(self, text):
        self.runs, self.cells = {}, {}
        for line in text.splitlines():
            record = json.loads(line)
            if record["kind"] == "run":
                self.runs[record["ranks"]] = record
            if record["kind"] == "cell":
                self.cells[record["ranks"], record["operation"], record["bytes"]] = record

    def noisy(self):
        return [" ".join(map(str, key)) for key, cell in self.cells.items() if cell["noisy"]]

    def sizes(self, ranks, operation):
        return sorted(size for r, o, size in self.cells if (r, o) == (ranks, operation))

    def median(self, ranks, operation, size, name):
        """Microseconds; None if the contestant has no such operation."""
        times = self.cells.get((ranks, operation, size), {"times_us": {}})["times_us"].get(name)
        return times[1] if times else None

    def names(self, ranks, operation):
        """This library first, then the peers, then the limit."""
        names = {name for size in self.sizes(ranks, operation) for name in self.cells[ranks, operation, size]["times_us"]}
        return sorted(names, key=lambda name: (name == "limit", is_peer(name), name))

    def best(self, ranks, operation, size, names=None):
        """(time, name) of the fastest of these, by default of the peers."""
        times = self.cells.get((ranks, operation, size), {"times_us": {}})["times_us"]
        found = [(time[1], name) for name, time in times.items() if (name in names if names else is_peer(name))]
        return min(found, default=(None, None))


def machine(runs):
    """Facts about the machine and the noise, wrapped as prose."""
    for fact in facts(runs):
        yield from textwrap.wrap(fact, 120, subsequent_indent="  ")


def facts(runs):
    run = next(iter(runs.runs.values()))
    cells = runs.cells.values()
    exchange = sorted(cell["exchange_ns"][1] for cell in cells)
    yield (f"* {run['cores']} cores, {run['processor']}, {run['system']}; {run['date']}; "
           f"{', '.join(str(r['rounds']) for r in runs.runs.values())} rounds with "
           f"{', '.join(map(str, runs.runs))} ranks.")
    yield (f"* Noise: stolen by the hypervisor {max(c['noise']['stolen'] for c in cells):.1%}, used by other programs "
           f"{max(c['noise']['others'] for c in cells):.1%} at most in a cell. An exchange of cache lines took "
           f"{exchange[0]:.0f} to {exchange[-1]:.0f} ns (medians of cells).")
    versions = {name: re.search(r"\d[\w.+]*", text) for r in runs.runs.values() for name, text in r["versions"].items()}
    peers = [f"{name} is {found[0]}" for name, found in sorted(versions.items()) if is_peer(name) and found]
    if peers:
        yield f"* Versions: {', '.join(peers)}."


def times(runs, ranks, operation):
    """Medians of all contestants in microseconds."""
    sizes = runs.sizes(int(ranks), operation)
    limit = "exchange of cache lines" if operation == "barrier" else "copy by all ranks"
    yield row(f"{operation}, {ranks} ranks, µs", *map(size_name, sizes)) if any(sizes) and not operation.startswith("step") else row("", "µs")
    yield "|---|" + "---|" * len(sizes)
    for name in runs.names(int(ranks), operation):
        values = [runs.median(int(ranks), operation, size, name) for size in sizes]
        yield row(limit if name == "limit" else name, *("" if v is None else number(v) for v in values))


def summary(runs, ranks):
    """Five figures: what a program gets by default, beside the fastest MPI and torch."""
    ranks = int(ranks)
    mpis = [name for name in STYLES if "MPI" in name]
    lines = [("all_reduce", size, f"all_reduce of {size_name(size)}") for size in (8, 64 * KIB, 16 * MIB)]
    lines += [("rows_one", max(runs.sizes(ranks, "rows_one")), "all_gather of {} that rank 0 has alone"),
              ("step", max(runs.sizes(ranks, "step")), "gradients of ResNet-50 averaged, a training step")]
    run = runs.runs[ranks]
    yield row(f"{ranks} ranks, {run['cores']} cores of an {run['processor']}, µs", "tutti", "the fastest MPI", "torch.distributed, Gloo")
    yield "|---" * 4 + "|"
    for operation, size, text in lines:
        best, mpi = runs.best(ranks, operation, size, mpis)
        torch = runs.median(ranks, operation, size, "torch Gloo")
        yield row(text.format(size_name(size)), number(runs.median(ranks, operation, size, "tutti auto")),
                  f"{number(best)} ({mpi})" if best else "", number(torch) if torch else "")


def ratios(runs, ranks, *operations):
    """This library's times divided by those of the best peer."""
    ranks = int(ranks)
    ours = [name for name in OURS if any(name in runs.names(ranks, operation) for operation in operations)]
    yield row(f"{ranks} ranks", "size", "best peer", "µs", *(f"{name} / best" for name in ours))
    yield "|---" * (4 + len(ours)) + "|"
    for operation in operations:
        for size in runs.sizes(ranks, operation):
            best, peer = runs.best(ranks, operation, size)
            if best is None:
                continue
            values = [runs.median(ranks, operation, size, name) for name in ours]
            shown = ["" if v is None else f"{v / best:.2f}" for v in values]
            yield row(operation, size_name(size) if size else "", peer, number(best),
                      *(f"**{text}**" if v is not None and v > best else text for v, text in zip(values, shown)))


def beside(runs, ranks, ours, *peers):
    """One contestant's times divided by the best of some peers, for all operations. '_' stands for a space."""
    ours, peers, ranks = ours.replace("_", " "), [peer.replace("_", " ") for peer in peers], int(ranks)
    found = {}
    for r, operation, size in sorted(runs.cells):
        value = runs.median(r, operation, size, ours)
        best = runs.best(r, operation, size, peers)[0]
        if r == ranks and value is not None and best is not None:
            found.setdefault(operation, {})[size] = value / best
    sizes = sorted({size for values in found.values() for size in values})
    yield row(f"{ours} / {' or '.join(peers)}", *(size_name(size) if size else "" for size in sizes))
    yield "|---|" + "---|" * len(sizes)
    for operation, values in found.items():
        yield row(operation, *(f"{values[size]:.2f}" if size in values else "" for size in sizes))


def skew(runs, ranks):
    """An all_gather of rows in the layouts that were measured."""
    ranks = int(ranks)
    size = max(runs.sizes(ranks, "rows_one"))
    layouts = {"equal rows": "rows_equal", "rank r has r + 1 shares": "all_gather_rows", "rank 0 has all": "rows_one"}
    layouts = {text: operation for text, operation in layouts.items() if (ranks, operation, size) in runs.cells}
    yield row(f"{size_name(size)}, {ranks} ranks, µs", *layouts, "most / least")
    yield "|---" * (len(layouts) + 2) + "|"
    for name in runs.names(ranks, "rows_one"):
        values = [runs.median(ranks, operation, size, name) for operation in layouts.values()]
        if name != "limit" and None not in values:
            yield row(name, *map(number, values), f"{max(values) / min(values):.2f}")


TABLES = {function.__name__: function for function in (machine, times, summary, ratios, beside, skew)}
# A contestant has the same color and dashes in all plots.
STYLES = ["tutti shm memory", "tutti gloo", "tutti auto", "tutti shm", "tutti local", "tutti hier",
          "Intel MPI", "MPICH 4.0", "MPICH 5.0", "Open MPI 4.1", "Open MPI 5.0", "bare Gloo", "bare Gloo ring",
          "bare Gloo bcube", "bare UCX", "bare UCX tcp", "torch Gloo"]
LIMIT = 23  # Grey and dotted.


def plot(runs, ranks, operation):
    """Describes time against size of every contestant, with the two limits of the machine."""
    sizes = runs.sizes(ranks, operation)
    exchange = sorted(runs.cells[ranks, operation, size]["exchange_ns"][1] for size in sizes)[len(sizes) // 2] / 1000
    lines = [{"name": "exchange of cache lines", "marks": [[sizes[0], exchange], [sizes[-1], exchange]], "style": LIMIT, "thin": True}]
    for name in runs.names(ranks, operation):
        marks = [[size, runs.median(ranks, operation, size, name)] for size in sizes]
        marks = [mark for mark in marks if mark[1] is not None and (name != "limit" or mark[1] > exchange)]
        style = STYLES.index(name) if name in STYLES else LIMIT
        lines.append({"name": "copy by all ranks" if name == "limit" else name, "marks": marks, "style": style,
                      "thin": name == "limit" or is_peer(name)})
    return [{"title": f"{operation}, {ranks} ranks", "x": {"name": "size", "scale": "bytes"},
             "y": {"name": "time of a call, median", "scale": "us"}, "lines": lines}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path)
    options = parser.parse_args()
    runs = Runs(options.runs.read_text())
    if runs.noisy():
        sys.exit("noisy, not for publication: " + "; ".join(runs.noisy()))

    def table(found):
        name, *arguments = found[2].split()
        return found[1] + "\n".join(["", *TABLES[name](runs, *arguments), "", ""]) + found[4]

    page = options.page.read_text()
    made = {options.page: MADE.sub(table, page)}
    different = [path for path, text in made.items() if path.read_text() != text]
    for operation, ranks in re.findall(r"\((?:performance/)([a-z_]+)_(\d+)\.svg\)", page):
        path, described = options.page.with_suffix("") / f"{operation}_{ranks}.svg", plot(runs, int(ranks), operation)
        if not path.exists() or description(path.read_text()) != described:
            different.append(path)
            made[path] = draw(described).decode() if options.write else ""
    for path in different if options.write else []:
        path.write_text(made[path])
    if different and not options.write:
        sys.exit("not made from the runs, make again with --write: " + ", ".join(map(str, different)))
    print("written" if options.write else "equal")


if __name__ == "__main__":
    main()
