"""`tutti bench`, with and without --links, over a network with a slow link and a slow rank:
slow_links_test.py PATH_OF_TUTTI PATH_OF_SLOW_NETWORK [unittest arguments]. Each rank has a network namespace."""
import json
import os
import subprocess
import sys
import unittest

SLOW_NETWORK = os.path.abspath(sys.argv.pop(2))

from driver import ENVIRONMENT, TUTTI, Program, main  # noqa: E402  (It reads the first argument.)

RANKS = 4
# All links have 1 Gbit/s, but this one and those of this rank.
SLOW_LINK = (0, 1)
SLOW_RANK = 3
# Runs on every rank, before the program.
LIMITS = f"""
set -e
slow() {{ tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit burst 16k cburst 16k; }}
if [ "$SLOW" = yes ]; then
  case {{rank}} in
    {SLOW_LINK[0]}) peer=10.77.0.{SLOW_LINK[1] + 1} ;;
    {SLOW_LINK[1]}) peer=10.77.0.{SLOW_LINK[0] + 1} ;;
    {SLOW_RANK}) peer=10.77.0.0/24 ;;
    *) peer= ;;
  esac
  if [ -n "$peer" ]; then
    tc qdisc replace dev eth0 root handle 1: htb default 10
    tc class add dev eth0 parent 1: classid 1:10 htb rate 1gbit
    slow
    tc filter add dev eth0 parent 1: protocol ip u32 match ip dst "$peer" flowid 1:20 || exit 77
  fi
fi
exec "$@"
"""


class SlowLinks(Program):
    def over_the_network(self, slow, *command):
        """What rank 0 prints."""
        ranks = ["env", f"SLOW={'yes' if slow else 'no'}", "TUTTI_RANK={rank}", f"TUTTI_SIZE={RANKS}", "TUTTI_LOCAL_RANK=0",
                 "TUTTI_LOCAL_SIZE=1", "TUTTI_STORE={store}", "sh", "-c", LIMITS, "sh",
                 TUTTI, *command, "--backend", "gloo", "--iface", "=eth0", "-f", "json"]
        done = subprocess.run([SLOW_NETWORK, str(RANKS), "1000", *ranks], env=ENVIRONMENT, text=True, capture_output=True,
                              timeout=120)
        if done.returncode == 77 or not done.stdout:
            self.skipTest(f"no network with limits here: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def test_bench_names_the_slow_link_and_the_slow_rank(self):
        for command in (["bench", "-s", "1K", "--iters", "10"], ["bench", "-s", "1K", "--iters", "10", "--links"]):
            with self.subTest(command=command):
                slow = self.over_the_network(True, *command)["slow"]
                self.assertEqual({tuple(each["ranks"]) for each in slow}, {SLOW_LINK, (SLOW_RANK,)}, slow)

    def test_no_rank_is_named_where_all_links_are_alike(self):
        for command in (["bench", "-s", "1K", "--iters", "10"], ["bench", "-s", "1K", "--iters", "10", "--links"]):
            with self.subTest(command=command):
                self.assertEqual(self.over_the_network(False, *command)["slow"], [])


if __name__ == "__main__":
    main()
