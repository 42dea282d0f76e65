"""`tutti bench --links`, and the names that `tutti bench` gives to slow ranks: links_test.py PATH_OF_TUTTI [unittest
arguments]. TUTTI_TEST_CLEAN_RUNS=50 makes 50 runs among equal ranks."""
import json
import os

from driver import Program, main, tutti

CLEAN_RUNS = int(os.environ.get("TUTTI_TEST_CLEAN_RUNS", "2"))
QUICK = ["-s", "8", "--iters", 10, "--warmup", 1, "--links"]


class Links(Program):
    def test_the_table_has_both_matrices_and_names_no_rank(self):
        text = self.runs("bench", "-n", 3, *QUICK)
        for heading in (r"latency in µs, half of a round trip of 8 B: [\d.]+ to [\d.]+, median [\d.]+",
                        r"bandwidth in GB/s, 4 x 256 KiB in flight: "):
            self.assertRegex(text, heading + r"[^\n]*\n +0 +1 +2\n +0 +- +[\d.]+ +[\d.]+\n +1 +[\d.]+ +- +[\d.]+\n +2 ")
        self.assertIn("no rank and no link is slow", text)
        for line in text.splitlines()[1:]:
            self.assertLessEqual(len(line), 80, line)
        self.assertIn("cannot be compared", self.runs("bench", "-n", 2, *QUICK))

    def test_the_json_follows_the_schema(self):
        run = self.measures("-n", 3, "--backend", "local", *QUICK, "-f", "json")
        self.check_schema("bench", [run], ({"links": 3}, {"links": [{**run["links"][0], "from": "0"}]}))
        self.assertEqual([(row["from"], row["to"]) for row in run["links"]], [(a, b) for a in range(3) for b in range(3) if a != b])
        self.assertGreater(run["links"][0]["bandwidth_gbps"], 0)
        self.assertEqual((run["slow"], run["config"]["links"]), ([], True))

    def test_one_rank_has_no_link(self):
        self.refuses(64, ["bench", "-n", "1", "--links"], "error: ", "one rank has no link", "at least 2")

    def test_messages_need_pairs_of_ranks(self):
        quick = ["--backend", "local", "-s", "24e", "--iters", 10, "--warmup", 1]
        patterns = "ping_pong,bandwidth,two_way_bandwidth"
        rows = self.measures(patterns, "-n", 4, *quick, "-f", "json")["results"]
        self.assertEqual([row["coll"] for row in rows], patterns.split(","))
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.refuses(64, ["bench", "-n", "3", "bandwidth"], "bandwidth", "3 ranks", "even number")
        notes = self.measures("all", "-n", 3, *quick, "-f", "json")["notes"]
        self.assertTrue(any("messages between pairs of 3 ranks" in note for note in notes), notes)
        self.assertRegex(self.runs("bench", "bandwidth", "-n", 2, *quick), r"busbw +msg/s +chk")
        self.assertNotIn("msg/s", self.runs("bench", "-n", 2, *quick))


class Clean(Program):
    """Equal ranks of one machine, which may be busy: none is slow."""

    def test_no_rank_and_no_link_is_named(self):
        for i in range(CLEAN_RUNS):
            for backend in ("auto", "local", "gloo"):
                bench = ["bench", "-n", 4, "--backend", backend, "-f", "json", "-s", "1K", "--min-time", "10ms"]
                for command in (bench, [*bench, "--links"]):
                    done = tutti(*command)
                    if done.returncode == 69:
                        continue    # The build lacks the backend.
                    self.assertEqual(done.returncode, 0, f"run {i}: {command}: {done.stdout[-2000:]}{done.stderr}")
                    self.assertEqual(json.loads(done.stdout)["slow"], [], f"run {i}: {command}")


if __name__ == "__main__":
    main()
