"""Prints the table of times in README.md.

usage: times.py TUTTI LIGHTGBM ROUNDS BACKEND...

Every run of LIGHTGBM trains over tutti and then over LightGBM's sockets, and each round has every
size and backend once. Runs beside which other programs used 5 % of the processors or more are left
out. Times are medians, ratios tutti / sockets the median and the quartiles of the runs' ratios."""
import os
import re
import resource
import statistics
import subprocess
import sys
import time

COMMUNICATION = re.compile(r"communication: ([\d.]+) s in (\d+) calls over tutti, ([\d.]+) s over sockets")
TRAINING = re.compile(r"hash \w+; ([\d.]+) s over tutti, ([\d.]+) s over sockets")


def processor_seconds():
    """Of all programs, and of those that this one has started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def run(tutti, lightgbm, size, backend):
    """The seconds of communication over tutti and sockets, of training over both, the calls, and
    what other programs used of the processors."""
    begin, before = time.monotonic(), processor_seconds()
    out = subprocess.run([tutti, "run", "-n", str(size), lightgbm, "--backend", backend, "--iterations", "20", "--verbose",
                          "binary", "multiclass", "lambdarank"], capture_output=True, text=True, check=True, timeout=300).stdout
    all_used, own_used = (now - then for now, then in zip(processor_seconds(), before))
    others = (all_used - own_used) / (os.cpu_count() * (time.monotonic() - begin))
    ours, calls, theirs = COMMUNICATION.search(out).groups()
    trainings = [(float(a), float(b)) for a, b in TRAINING.findall(out)]
    return float(ours), float(theirs), sum(a for a, _ in trainings), sum(b for _, b in trainings), int(calls), others


def ratios(pairs):
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    tutti, lightgbm, rounds, *backends = sys.argv[1:]
    rows = {(size, backend): [] for size in (2, 4) for backend in backends}
    for _ in range(int(rounds)):
        for row, runs in rows.items():
            found = run(tutti, lightgbm, *row)
            if found[5] < 0.05:
                runs.append(found)
    print("| Processes | Backend | Runs | Calls | Communication, tutti | sockets | ratio | Training, tutti | sockets | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (size, backend), runs in rows.items():
        if len(runs) < 2:
            print(f"| {size} | `{backend}` | {len(runs)} | the machine was busy |||||||")
            continue
        a, b, c, d = (f"{statistics.median(column):.2f}" for column in list(zip(*runs))[:4])
        print(f"| {size} | `{backend}` | {len(runs)} | {runs[0][4]} | {a} | {b} | {ratios([r[:2] for r in runs])} | {c} | {d} "
              f"| {ratios([r[2:4] for r in runs])} |")
