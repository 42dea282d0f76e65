"""Times of `tutti run`, in milliseconds: from its start to the end of the last rank's first barrier, and from there to
its exit (docs/launching.md).

    launch_times.py TUTTI PROGRAM [--ranks 2,8,32] [--rounds 9] [--beside COMMAND]

PROGRAM is launch_times. Other launchers take turns with tutti: --beside 'mpirun -n {n} PROGRAM', where the program
prints the line of launch_times.cpp."""
import argparse
import random
import re
import shlex
import statistics
import subprocess
import sys
import time


def measure(command, ranks):
    """(start, end) of one launch, in milliseconds."""
    started = time.monotonic()
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ended = time.monotonic()
    barriers = [float(seconds) for seconds in re.findall(r"barrier (\S+)", process.stdout)]
    if process.returncode != 0 or len(barriers) != ranks:
        sys.exit(f"{shlex.join(command)}: status {process.returncode}, {len(barriers)} of {ranks} ranks\n"
                 f"{process.stderr}")
    return 1e3 * (max(barriers) - started), 1e3 * (ended - max(barriers))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("tutti")
    parser.add_argument("program")
    parser.add_argument("--ranks", default="2,8,32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside", action="append", default=[], help="command of another launcher; {n}: ranks")
    options = parser.parse_args()

    tutti = [options.tutti, "run", "-n", "{n}", options.program]
    commands = [tutti, *map(shlex.split, options.beside)]
    print(f"{'launcher':<24} {'ranks':>5} {'to barrier':>11} {'to exit':>9} {'max':>7}   ms, medians of {options.rounds}")
    for ranks in map(int, options.ranks.split(",")):
        times = {number: [] for number in range(len(commands))}
        for _ in range(options.rounds):
            for number in random.sample(range(len(commands)), len(commands)):
                command = [word.replace("{n}", str(ranks)) for word in commands[number]]
                times[number].append(measure(command, ranks))
        for number, pairs in times.items():
            name = "tutti run" if number == 0 else commands[number][0]
            starts, ends = zip(*pairs)
            print(f"{name:<24} {ranks:>5} {statistics.median(starts):>11.0f} {statistics.median(ends):>9.0f} "
                  f"{max(ends):>7.0f}")


if __name__ == "__main__":
    main()
