"""Prints the table of times in README.md.

usage: times.py TUTTI LIGHTGBM ROUNDS BACKEND...

Every run of LIGHTGBM trains over tutti and then over LightGBM's sockets. The rounds go through all
rows, so that what else the machine does hits all of them. Times are medians, ratios the median and
the quartiles of the runs' ratios, tutti / sockets."""
import re
import statistics
import subprocess
import sys

TASKS = ["binary", "multiclass", "lambdarank"]
COMMUNICATION = re.compile(r"communication: ([\d.]+) s in (\d+) calls over tutti, ([\d.]+) s over sockets")
TRAINING = re.compile(r"([\d.]+) s over tutti, ([\d.]+) s over sockets$", re.M)


def run(tutti, lightgbm, size, backend):
    """The seconds of one run: communication over tutti and sockets, training over tutti and sockets."""
    out = subprocess.run([tutti, "run", "-n", str(size), lightgbm, "--backend", backend, "--iterations", "20", "--verbose",
                          *TASKS], capture_output=True, text=True, check=True, timeout=300).stdout
    ours, calls, theirs = COMMUNICATION.search(out).groups()
    trainings = [(float(a), float(b)) for a, b in TRAINING.findall(out) if (a, b) != (ours, theirs)]
    return float(ours), float(theirs), sum(a for a, _ in trainings[:3]), sum(b for _, b in trainings[:3]), int(calls)


def ratios(pairs):
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    tutti, lightgbm, rounds, *backends = sys.argv[1:]
    rows = {(size, backend): [] for size in (2, 4) for backend in backends}
    for _ in range(int(rounds)):
        for row, runs in rows.items():
            runs.append(run(tutti, lightgbm, *row))
    print("| Processes | Backend | Calls | Communication, tutti | sockets | ratio | Training, tutti | sockets | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (size, backend), runs in rows.items():
        a, b, c, d = (f"{statistics.median(column):.3f}" for column in list(zip(*runs))[:4])
        print(f"| {size} | `{backend}` | {runs[0][4]} | {a} | {b} | {ratios([r[:2] for r in runs])} | {c} | {d} "
              f"| {ratios([r[2:4] for r in runs])} |")
