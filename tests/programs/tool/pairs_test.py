"""`tutti pairs`, and the names that `tutti bench` gives to slow ranks: pairs_test.py PATH_OF_TUTTI [unittest
arguments]. TUTTI_TEST_CLEAN_RUNS=50 makes 50 runs among equal ranks."""
import csv
import io
import json
import os
import unittest
from xml.etree import ElementTree

from driver import Program, main, tutti

CLEAN_RUNS = int(os.environ.get("TUTTI_TEST_CLEAN_RUNS", "2"))
QUICK = ["--passes", 2, "--min-time", "1ms"]


class Pairs(Program):
    def pairs(self, *arguments, **variables):
        return json.loads(self.runs("pairs", *arguments, "-f", "json", **variables))

    def test_the_table_has_both_matrices_and_names_no_rank(self):
        text = self.runs("pairs", "-n", 3, *QUICK)
        self.assertRegex(text, r"^tutti pairs \S+  3 ranks / 1 host  ")
        for heading in (r"latency in µs, half of a round trip of 8 B: [\d.]+ to [\d.]+, median [\d.]+",
                        r"bandwidth in GB/s, 4 x 256 KiB in flight: "):
            self.assertRegex(text, heading + r"[^\n]*\n +0 +1 +2\n +0 +- +[\d.]+ +[\d.]+\n +1 +[\d.]+ +- +[\d.]+\n +2 ")
        self.assertIn("no rank and no link is slow", text)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
        self.assertIn("cannot be compared", self.runs("pairs", "-n", 2, *QUICK))

    def test_the_json_follows_the_schema_and_the_csv_has_its_rows(self):
        run = self.pairs("-n", 3, "--backend", "local", "--at-once", *QUICK)
        self.check_schema("pairs", [run], ({"schema_version": 2}, {"surprise": 1}), ({"from": "0"},))
        self.assertEqual([(row["from"], row["to"]) for row in run["results"]],
                         [(a, b) for a in range(3) for b in range(3) if a != b])
        self.assertEqual(run["slow"], [])
        self.assertIs(run["config"]["at_once"], True)
        rows = list(csv.DictReader(io.StringIO(self.runs("pairs", "-n", 2, *QUICK, "-f", "csv"))))
        self.assertEqual([(row["from"], row["to"]) for row in rows], [("0", "1"), ("1", "0")])
        self.assertGreater(float(rows[0]["bandwidth_gbps"]), 0)
        self.assertIn("| from | to | latency µs | GB/s |", self.runs("pairs", "-n", 2, *QUICK, "-f", "md"))

    def test_the_picture_has_a_cell_for_every_link_in_both_matrices(self):
        picture = ElementTree.fromstring(self.runs("pairs", "-n", 3, *QUICK, "-f", "svg"))
        tips = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}title")]
        for a in range(3):
            for b in range(3):
                here = [tip for tip in tips if tip.startswith(f"{a} to {b}: ")]
                self.assertEqual(len(here), 0 if a == b else 2, tips)
        texts = "".join(picture.itertext())
        self.assertIn("no rank and no link is slow", texts)

    def test_usage(self):
        for arguments, words in (
                (["-n", "1"], ["one rank has no link", "at least 2"]),
                ([], ["-n N"]),
                (["-n", "2", "--device", "cuda"], ["--device cuda", "ping_pong"]),
                (["-n", "2", "--passes", "0"], ["--passes '0'"]),
                (["-n", "2", "--min-time", "1"], ["--min-time '1'"]),
                (["-n", "2", "--out", "x.html"], ["x.html", ".md or .svg"]),
                (["-n", "2", "all_reduce"], ["all_reduce"])):
            self.refuses(64, ["pairs", *arguments], "error: ", *words)

    def test_names_of_osu_and_pairs_of_ranks(self):
        quick = ["--backend", "local", "-s", "24e", "--iters", 10, "--warmup", 1]
        rows = self.measures("osu_latency,osu_bw,osu_bibw,osu_mbw_mr,osu_multi_lat", "-n", 4, *quick, "-f", "json")["results"]
        self.assertEqual([row["coll"] for row in rows], ["ping_pong", "bandwidth", "two_way_bandwidth"])
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.refuses(64, ["bench", "-n", "3", "osu_bw"], "bandwidth", "3 ranks", "even number")
        notes = self.measures("all", "-n", 3, *quick, "-f", "json")["notes"]
        self.assertTrue(any("messages between pairs of 3 ranks" in note for note in notes), notes)
        self.assertRegex(self.runs("bench", "bandwidth", "-n", 2, *quick), r"busbw +msg/s +chk")
        self.assertNotIn("msg/s", self.runs("bench", "-n", 2, *quick))


class Clean(Program):
    """Equal ranks of one machine, which may be busy: none is slow."""

    def test_no_rank_and_no_link_is_named(self):
        for i in range(CLEAN_RUNS):
            for backend in ("auto", "local", "gloo"):
                arguments = ["-n", 4, "--backend", backend, "-f", "json"]
                for command in (["pairs", *arguments], ["bench", *arguments, "-s", "1K", "--min-time", "10ms"]):
                    done = tutti(*command)
                    if done.returncode == 69:
                        continue    # The build lacks the backend.
                    self.assertEqual(done.returncode, 0, f"run {i}: {command}: {done.stdout[-2000:]}{done.stderr}")
                    self.assertEqual(json.loads(done.stdout)["slow"], [], f"run {i}: {command}")


if __name__ == "__main__":
    main()
