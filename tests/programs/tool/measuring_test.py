"""What `tutti bench` measures besides calls one after the other, and the tables for it: measuring_test.py
PATH_OF_TUTTI [unittest arguments]."""
import json
import pathlib
import re
import statistics
import tempfile

from driver import Program, main

QUICK = ["-n", 2, "--backend", "local", "--min-time", "1ms", "--warmup", 1]
WITH_WORK = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "scan",
             "exclusive_scan", "send_recv", "barrier"]


class Overlap(Program):
    def test_every_collective_with_a_work_has_an_overlap(self):
        for check, place in (("first", []), ("all", ["--place", "both"])):
            run = self.measures("all", *QUICK, "-s", "48K", "--overlap", "--check", check, *place, "-f", "json")
            self.assertEqual(list(dict.fromkeys(row["coll"] for row in run["results"])), WITH_WORK)
            for row in run["results"]:
                self.assertEqual(row["wrong"] or 0, 0, row)
                overlap = row["overlap"]
                hidden = 1 - (overlap["overall_us"] - overlap["compute_us"]) / overlap["comm_us"]
                self.assertAlmostEqual(overlap["percent"], min(max(0, 100 * hidden), 100), places=6)
                self.assertLessEqual(overlap["comm_us"], row["time_us"]["max"])
                self.assertGreater(overlap["overall_us"], overlap["comm_us"] / 10)
        self.assertIn("all_gather_rows has no form that returns a Work", str(run["notes"]))
        self.check_schema("bench", [run], row_changes=({"overlap": 3}, {"overlap": {}}))

    def test_the_table_has_the_columns_of_osu(self):
        text = self.runs("bench", *QUICK, "-s", "1K", "--overlap")
        self.assertRegex(text, r"\n +size +overall µs +compute µs +comm µs +overlap +chk +iters\n"
                               r" +1 KiB +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+% +ok +\d+")


class Places(Program):
    def test_both_places_are_a_table_each(self):
        for order in ("size", "random"):
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "r.json")
                text = self.runs("bench", "all_reduce,all_gather,broadcast", *QUICK, "-s", "8,1K,8K", "--place", "both",
                                 "--order", order, "--out", file)
                run = json.loads(file.read_text())
            rows = [(row["coll"], row["place"]) for row in run["results"]]
            self.assertEqual(rows, [(name, place) for name, places in (("all_reduce", ("out", "in")),
                                                                       ("all_gather", ("out", "in")), ("broadcast", ("in",)))
                                    for place in places for _ in range(3)])
            for place in ("out-of-place", "in-place"):
                self.assertRegex(text, rf"\nall_reduce  f32 sum  {place}\n +size .*\n +8 B .*\n +1 KiB .*\n +8 KiB .*\n")

    def test_the_average_is_of_all_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "r.json")
            text = self.runs("bench", "all_reduce,barrier", *QUICK, "-s", "1K,64K", "--place", "both", "--out", file)
            run = json.loads(file.read_text())
        busbw = [row["busbw"] for row in run["results"] if row["busbw"] is not None]
        self.assertEqual(len(busbw), 4)
        self.assertAlmostEqual(run["avg_busbw"], statistics.mean(busbw), places=9)
        self.assertAlmostEqual(float(re.search(r"\n  Avg bus bandwidth: (\S+) GB/s\n$", text)[1]), run["avg_busbw"],
                               delta=run["avg_busbw"] / 100)


class Aggregates(Program):
    def test_all_collectives_are_right_in_a_coalesce(self):
        run = self.measures("all", *QUICK, "-s", "48,4800", "-m", 3, "--check", "all", "--place", "both", "-f", "json")
        self.assertEqual(list(dict.fromkeys(row["coll"] for row in run["results"])), WITH_WORK)
        for row in run["results"]:
            self.assertEqual((row["wrong"] or 0, row["calls_per_sample"]), (0, 3), row)
        self.assertEqual(run["config"]["aggregate"], 3)


class Groups(Program):
    def test_create_and_split_have_times_and_no_bandwidth(self):
        for backend in ("local", "gloo"):
            run = self.measures("create,split", "-n", 2, "--backend", backend, "--min-time", "1ms", "-f", "json")
            self.assertEqual([row["coll"] for row in run["results"]], ["create", "split"])
            for row in run["results"]:
                self.assertGreater(row["time_us"]["min"], 0)
                self.assertEqual((row["algbw"], row["busbw"], row["wrong"], row["dtype"]), (None, None, None, None))

    def test_all_makes_no_group(self):
        run = self.measures("all", *QUICK, "-s", "48", "-f", "json")
        self.assertFalse({"create", "split"} & {row["coll"] for row in run["results"]})


if __name__ == "__main__":
    main()
