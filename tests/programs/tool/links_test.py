"""`tutti bench --links`, the names that `tutti bench` gives to slow ranks, and encrypted links: links_test.py PATH_OF_TUTTI [unittest
arguments]. TUTTI_TEST_CLEAN_RUNS=50 makes 50 runs among equal ranks."""
import json
import os
import subprocess
import tempfile

from driver import ENVIRONMENT, TUTTI, Program, main, tutti

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


class Encrypted(Program):
    """TUTTI_TLS over the backends that serve this build."""
    QUICK = ["bench", "-n", 2, "-s", "8,1M", "--iters", 10, "--warmup", 1]

    def test_tcp_encrypts_and_says_so(self):
        done = tutti(*self.QUICK, "--backend", "tcp", TUTTI_TLS="1")
        if "without OpenSSL" in done.stderr:
            self.skipTest("built without OpenSSL")
        self.assertIn("tcp tcp/lo, TLS 1.3", done.stdout, done.stderr)
        self.assertIn(" 0 wrong elements", done.stdout)
        self.assertNotIn("TLS", self.runs(*self.QUICK, "--backend", "tcp"))

    def test_nothing_is_sent_in_clear_instead(self):
        for backend in ("gloo", "ucx"):
            done = tutti(*self.QUICK, "--backend", backend, TUTTI_TLS="1")
            self.assertEqual(done.returncode, 69)
            self.assertRegex(done.stderr, f"the backend {backend} does not encrypt|not in this build|was not found")

    def test_ranks_that_differ_are_named(self):
        script = f"TUTTI_TLS=$TUTTI_RANK exec '{TUTTI}' bench --backend tcp -s 8"
        done = tutti("run", "-n", 2, "sh", "-c", script)
        self.assertEqual(done.returncode, 69)
        self.assertRegex(done.stderr, "TUTTI_TLS is ([01]) on rank \\1 and ([01]) on rank \\2;")

    def test_without_a_token_it_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([TUTTI, "bench", "--backend", "tcp", "-s", "8"], stderr=subprocess.PIPE, text=True,
                                      env={**ENVIRONMENT, "TUTTI_TLS": "1", "TUTTI_STORE": f"file://{folder}",
                                           "TUTTI_SIZE": "2", "TUTTI_RANK": str(rank)}) for rank in range(2)]
            self.assertIn("the job has no token", "".join(rank.communicate(timeout=60)[1] for rank in ranks))
            self.assertEqual([rank.returncode for rank in ranks], [69, 69])


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
