"""Measures `tutti compare --run`, on an idle machine: how often a program that is slower is found, and how often two
runs of the same program are called different. By hand: compare_power.py PATH_OF_TUTTI PATH_OF_SLOWED_BENCH."""
import argparse
import json
import statistics
import subprocess
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tutti")
    parser.add_argument("slowed_bench")
    parser.add_argument("--runs", type=int, default=50, help="of each kind (50)")
    parser.add_argument("--percent", type=float, default=10, help="slow-down (10)")
    parser.add_argument("--max-total", default="60s", help="of each run (60s)")
    parser.add_argument("--bench", default="-n 2 --backend shm -s 64K,1M,4M --min-time 50ms",
                        help="options of bench; of a call below a microsecond a tenth is less than a clock tells")
    arguments = parser.parse_args()

    def command(percent):
        """A command whose calls take longer, by a part of their usual p50."""
        additions = ",".join(f"{size}:{us * percent / 100}" for size, us in usual.items())
        return f"{arguments.slowed_bench} {additions or '0:0'} {arguments.bench}"

    def compare(percent):
        """The rows of a comparison with a program that is slower."""
        old, new = command(0), command(percent)
        done = subprocess.run([arguments.tutti, "compare", "--run", old, new, "--max-total", arguments.max_total,
                               "-f", "json"], stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 1):
            sys.exit(done.returncode)
        return json.loads(done.stdout)["results"]

    usual = {}
    samples = [json.loads(subprocess.check_output(f"{command(0)} -f json -q", shell=True))["results"] for _ in range(9)]
    usual = {rows[0]["bytes"]: statistics.median(row["time_us"]["p50"] for row in rows) for rows in zip(*samples)}
    print(f"usual p50: {', '.join(f'{us:.1f} us of {size} bytes' for size, us in usual.items())}")

    found = false = 0
    longest = 0.0
    for i in range(arguments.runs):
        for percent in (arguments.percent, 0):
            begin = time.monotonic()
            rows = compare(percent)
            longest = max(longest, time.monotonic() - begin)
            results = [row["result"] for row in rows]
            found += percent != 0 and all(result == "slower" for result in results)
            false += percent == 0 and any(result in ("slower", "faster") for result in results)
            texts = [f"{row['ratio'] - 1:+.1%} {row['result']}" for row in rows]
            print(f"{i + 1:3}  {percent:g}% slower:  {',  '.join(texts)}  ({rows[0]['new_units']} rounds)", flush=True)
    print(f"{found} of {arguments.runs} comparisons found all rows of a program that is {arguments.percent:g}% slower; "
          f"{false} of {arguments.runs} called a row of equal programs different; at most {longest:.0f} s each")
    sys.exit(found < arguments.runs * 48 // 50 or false > max(1, arguments.runs // 50))


main()
