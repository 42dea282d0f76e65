"""Runs the program with command lines of a user: program_test.py PATH_OF_TUTTI [unittest
arguments]."""
import csv
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from driver import ENVIRONMENT, TUTTI, Program, main, tutti

FLOATS = {"f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"}
COLLECTIVES = {"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_rows", "all_gather_padded", "reduce_scatter", "all_to_all",
               "gather", "scatter", "scan", "exclusive_scan", "send_recv", "barrier"}
PAIRED = {"ping_pong", "bandwidth", "two_way_bandwidth"}     # For even numbers of ranks.

DIVIDED = {"all_gather", "all_gather_rows", "all_gather_padded", "reduce_scatter", "all_to_all", "gather", "scatter"}
LAYOUTS = ["even", "last-short", "one-empty", "mild", "linear", "zipf:1.2", "one-only"]
QUICK = ["--min-time", "1ms", "--warmup", "1", "-f", "json"]


def collectives_of(ranks):
    return COLLECTIVES | PAIRED if ranks % 2 == 0 else COLLECTIVES


class Bench(Program):
    def check_rows(self, run, ranks):
        """No row has wrong data, and `wrong` is unknown only for barrier."""
        for row in run["results"]:
            if row["coll"] == "barrier":
                self.assertIsNone(row["wrong"])
                self.assertIsNone(row["busbw"])
            else:
                self.assertEqual(row["wrong"], 0, row)
                self.assertIsNone(row["first_wrong"])
                self.assertGreater(row["algbw"], 0)
                if ranks > 1:
                    self.assertGreater(row["busbw"], 0)
                else:
                    self.assertIsNone(row["busbw"])
            self.assertEqual(row["ranks"], ranks)
            self.assertEqual(len(row["time_us_rank_mean"]), ranks)
            time = row["time_us"]
            self.assertGreaterEqual(time["n"], 10)
            ascending = [time[name] for name in ("min", "p50", "p90", "p99", "max")]
            self.assertEqual(ascending, sorted(ascending))

    def test_all_collectives_are_right_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                run = self.measures("all", "-n", ranks, "--backend", "local", "-s", "12e,1200e,120000e", *QUICK)
                expected = collectives_of(ranks)
                self.assertEqual({row["coll"] for row in run["results"]}, expected)
                self.assertEqual(len(run["results"]), 3 * (len(expected) - 1) + 1)
                self.assertEqual(run["status"], "ok")
                self.assertEqual(run["world"]["size"], ranks)
                self.check_rows(run, ranks)

    def test_all_dtypes_ops_places_and_roots_are_right(self):
        for ranks in (2, 3):
            run = self.measures("all", "-n", ranks, "--backend", "local", "-d", "all", "-o", "all", "--place", "both",
                                "--root", "all", "-s", "12e,120e", "--iters", 10, "--warmup", 0, "--check", "all",
                                "-f", "json")
            self.check_rows(run, ranks)
            combinations = {(row["dtype"], row["op"]) for row in run["results"] if row["coll"] == "all_reduce"}
            self.assertEqual(len({dtype for dtype, _ in combinations}), 17)
            self.assertEqual({op for dtype, op in combinations if dtype == "complex64"}, {"sum", "avg", "premul_sum"})
            self.assertEqual({op for dtype, op in combinations if dtype == "f32"},
                             {"sum", "avg", "prod", "min", "max", "premul_sum"})
            self.assertEqual({op for dtype, op in combinations if dtype == "u8"},
                             {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"})
            self.assertTrue(any(note.startswith("left out ") for note in run["notes"]))
            roots = {row["root"] for row in run["results"] if row["coll"] == "reduce"}
            self.assertEqual(roots, set(range(ranks)))
            places = {(row["coll"], row["place"]) for row in run["results"]}
            self.assertIn(("all_gather", "in"), places)
            self.assertNotIn(("all_to_all", "in"), places)
            self.assertNotIn(("broadcast", "out"), places)

    def test_the_json_follows_the_schema(self):
        runs = [self.measures("all", "-n", 2, "--backend", "local", "-s", "24,2400,240000", *QUICK),
                self.measures("all", "-n", 1, "-s", "24", *QUICK, "--samples", "all", "--percentiles", "5,99.9"),
                self.measures("reduce", "-n", 2, "-s", "24", *QUICK, "--check", "none", "--iters", 3)]
        unknown = {name: value for name, value in runs[0]["results"][0].items() if name != "wrong"}
        self.check_schema("bench", runs, ({"schema_version": 2}, {"status": "fine"}, {"surprise": 1}, {"results": [unknown]}))

    def test_the_record_says_what_was_measured_where(self):
        run = self.measures("all_gather,reduce", "-n", 3, "-s", "1200", "-d", "i64", "--seed", 9, "--backend", "local", *QUICK,
                            OMP_NUM_THREADS="7", SECRET_TOKEN="hidden")
        self.assertEqual(run["config"]["units"], "GB=1e9,time=us")
        self.assertEqual(run["config"]["seed"], 9)
        self.assertEqual(run["config"]["min_time_s"], 0.001)
        self.assertEqual(run["config"]["warmup"], 1)
        self.assertEqual(run["config"]["iters"], "auto")
        self.assertEqual(run["env"], {"OMP_NUM_THREADS": "7"})
        self.assertNotIn("hidden", json.dumps(run))
        self.assertEqual(run["argv"][1:3], ["bench", "all_gather,reduce"])
        self.assertEqual([rank["rank"] for rank in run["world"]["ranks"]], [0, 1, 2])
        self.assertEqual({rank["device"] for rank in run["world"]["ranks"]}, {"cpu"})
        self.assertIs(run["world"]["threads"], True)
        self.assertIs(run["world"]["oversubscribed"], 3 > run["world"]["cpus"])
        self.assertEqual(run["backend"]["name"], "local")
        self.assertTrue(run["backend"]["chosen_because"])
        row = run["results"][0]
        self.assertEqual((row["coll"], row["dtype"], row["op"], row["place"], row["root"], row["bytes"],
                          row["count"]), ("all_gather", "i64", None, "out", None, 1200, 150))
        self.assertAlmostEqual(row["busbw"] / row["algbw"], 2 / 3)
        allowed = self.measures("-n", 1, "-s", 8, *QUICK, "--env-allow", "SECRET_*", SECRET_TOKEN="shown")
        self.assertEqual(allowed["env"]["SECRET_TOKEN"], "shown")

    def test_samples_are_the_iterations_that_the_statistics_are_of(self):
        row = self.measures("-n", 2, "-s", "1K", "--iters", 50, "--samples", "all", "-f", "json")["results"][0]
        self.assertEqual(len(row["samples_us"]), 50)
        self.assertEqual(row["time_us"]["n"], 50)
        self.assertEqual(max(row["samples_us"]), row["time_us"]["max"])
        self.assertEqual(sorted(row["samples_us"])[24], row["time_us"]["p50"])
        self.assertEqual(row["flags"][0], "few_samples")

    def test_a_sweep_has_a_fit(self):
        run = self.measures("-n", 2, "-s", "1K,64K,4M,16M", *QUICK)
        self.assertEqual([fit["coll"] for fit in run["fit"]], ["all_reduce"])
        self.assertGreater(run["fit"][0]["beta_GBps"], 0)
        self.assertEqual(self.measures("-n", 2, "-s", "1K,64K", *QUICK)["fit"], [])

    def test_the_other_ways_of_measuring_are_right_too(self):
        for options in (["--mode", "latency"], ["--cold"], ["--order", "random"], ["--check", "all"],
                        ["--rank-agg", "mean"], ["--rank-agg", "min"], ["--rank-agg", "rank0"]):
            with self.subTest(options=options):
                run = self.measures("all", "-n", 2, "-s", "8:64K:x64", *options, *QUICK)
                self.check_rows(run, 2)

    def test_a_range_is_rounded_up_to_what_each_collective_takes(self):
        run = self.measures("all", "-n", 4, "-s", "8:64K:x8", *QUICK)
        least = {row["coll"]: row["bytes"] for row in reversed(run["results"])}
        self.assertEqual((least["all_reduce"], least["all_gather"]), (8, 16))

    def test_checked_mode_can_be_measured(self):
        run = self.measures("all", "-n", 2, "-s", "24", "--iters", 10, "--warmup", 0, "-f", "json", TUTTI_CHECK="1")
        self.check_rows(run, 2)
        self.assertEqual(run["env"], {"TUTTI_CHECK": "1"})

    def test_files_are_written_whole_and_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = pathlib.Path(folder, "a.json"), pathlib.Path(folder, "b.json")
            first.write_text("old")
            text = self.runs("bench", "-n", 2, "-s", "1K", "--min-time", "1ms", "--out", first, "--out", second)
            self.assertIn("0 wrong elements", text)
            self.assertEqual(json.loads(first.read_text())["status"], "ok")
            self.assertEqual(first.read_text(), second.read_text())
            self.assertEqual(sorted(os.listdir(folder)), ["a.json", "b.json"])
            tutti("bench", "-n", 2, "-s", "1K", "--backend", "nccl", "--out", pathlib.Path(folder, "c.json"))
            self.refuses(64, ["bench", "-n", 2, "--out", pathlib.Path(folder, "none", "r.json")], "none/r.json")
            self.refuses(64, ["bench", "-n", 2, "--out", pathlib.Path(folder, "r.pdf")], "r.pdf", ".csv")
            self.assertEqual(sorted(os.listdir(folder)), ["a.json", "b.json"])

    def test_a_full_disk_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        with open("/dev/full", "w") as full:
            done = subprocess.run([TUTTI, "bench", "-n", "1", "-s", "8", "--min-time", "1ms"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 70, done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)

    def test_the_default_run_is_short_and_a_table(self):
        text = self.runs("bench", "-n", 2, "--backend", "local", "--min-time", "10ms")
        self.assertRegex(text, r"^tutti bench \S+  all_reduce  f32 sum  out-of-place  2 ranks / 1 host  local\n")
        self.assertRegex(text, r"\n +size +p50 µs +p99 µs +max µs +algbw +busbw +chk +iters\n")
        self.assertRegex(text, r"\n +8 B +[\d.]+ +[\d.]+ +[\d.]+ +[\d.e-]+ +[\d.e-]+ +ok +\d+")
        self.assertRegex(text, r"\n  0 wrong elements +[\d.]+ s\n  Avg bus bandwidth: [\d.e-]+ GB/s\n$")
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
        text = self.runs("bench", "-n", 2, "-s", "1K", "--min-time", "1ms", "--percentiles", "10,75,99.9")
        self.assertRegex(text, r"p10 µs +p75 µs +p99.9 µs +max µs")

    def test_quiet_and_verbose(self):
        self.assertEqual(tutti("bench", "-n", 2, "-s", "1K", "--min-time", "1ms", "-q").stderr, "")
        self.assertRegex(tutti("bench", "-n", 2, "-s", "1K", "--iters", 3, "--warmup", 2, "-v").stderr,
                         r"1 KiB: 2 warm-up calls, 3 iterations")


def factor(row):
    """Bus bandwidth divided by algorithm bandwidth, from the counts alone."""
    counts, size = row["counts"], row["count"]
    if row["coll"] in ("gather", "scatter"):
        return (size - counts[row["root"]]) / size
    least = (size - min(counts)) / size
    return max(least, (len(counts) - 1) * max(counts) / size) if row["coll"] == "all_to_all" else least


class Uneven(Program):
    """--counts."""

    def check_uneven(self, run, ranks):
        self.assertEqual(run["status"], "ok")
        for row in run["results"]:
            self.assertEqual(row["wrong"], 0, row)
            if row["layout"] == "even":
                self.assertIsNone(row["counts"])
                continue
            self.assertEqual(len(row["counts"]), ranks)
            self.assertEqual(sum(row["counts"]), row["count"])
            expected = factor(row) if ranks > 1 else 0
            if expected == 0:
                self.assertIsNone(row["busbw"], row)
            else:
                self.assertAlmostEqual(row["busbw"] / row["algbw"], expected, msg=row)

    def test_every_layout_of_everything_that_is_cut_is_right(self):
        for ranks in (2, 3, 4):
            run = self.measures(",".join(sorted(DIVIDED)), "-n", ranks, "--backend", "local", "-s", "48,4800,240000",
                                "--counts", ",".join(LAYOUTS), "--place", "out", "--root", "all", "--check", "all",
                                "--iters", 2, "--warmup", 0, "-f", "json")
            self.check_uneven(run, ranks)
            self.assertEqual({(row["coll"], row["layout"]) for row in run["results"]},
                             {(coll, layout) for coll in DIVIDED for layout in LAYOUTS})

    def test_uneven_blocks_are_right_for_all_dtypes_and_ops_in_place_and_out_of_place(self):
        run = self.measures("all_gather,reduce_scatter,gather,scatter", "-n", 3, "--backend", "local", "-s", "1e,240",
                            "-d", "all", "-o", "all", "--counts", "one-empty,zipf:1", "--place", "both", "--check",
                            "all", "--iters", 2, "--warmup", 0, "-f", "json")
        self.check_uneven(run, 3)
        self.assertEqual({row["place"] for row in run["results"]}, {"in", "out"})
        self.assertEqual(len({row["dtype"] for row in run["results"]}), 17)

    def test_rows_of_unknown_counts_and_padded_rows_are_right_for_every_layout(self):
        for ranks in (1, 2, 3, 4):
            layouts = [layout for layout in LAYOUTS if ranks > 1 or layout != "one-empty"]
            run = self.measures("all_gather,all_gather_rows,all_gather_padded", "-n", ranks, "--backend", "local", "-s",
                                "48,1200000", "--counts", ",".join(layouts), "--check", "all", "--iters", 3, "--warmup", 0,
                                "-f", "json")
            self.check_uneven(run, ranks)
            self.assertEqual(len(run["results"]), 3 * len(layouts) * 2)
            self.assertEqual([row["bytes"] for row in run["results"][:4]], 2 * [48, 1200000])

    def test_all_can_be_measured_unevenly_and_in_checked_mode(self):
        run = self.measures("all", "-n", 3, "--backend", "local", "-s", "48", "--counts", "linear", "--iters", 2,
                            "--warmup", 0, "-f", "json", TUTTI_CHECK="1")
        self.assertEqual({row["coll"] for row in run["results"]}, COLLECTIVES)
        for row in run["results"]:
            self.assertEqual(row["layout"], "linear" if row["coll"] in DIVIDED else None)
            self.assertEqual(row["counts"], [2, 4, 6] if row["coll"] in DIVIDED else None)
            self.assertIn(row["wrong"], (0, None))
        self.assertEqual(run["config"]["counts"], ["linear"])

    def test_a_file_says_the_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "counts")
            file.write_text("5 0\n7\n")
            both = self.measures("all_gather", "-n", 3, "--backend", "local", "-s", "12e,120e", "--counts",
                                 f"file:{file}", "-f", "json", "--iters", 3)
            self.check_uneven(both, 3)
            self.assertEqual([row["counts"] for row in both["results"]], [[5, 0, 7], [50, 0, 70]])
            self.assertEqual(both["results"][0]["layout"], f"file:{file}")
            self.refuses(64, ["bench", "all_gather", "-n", 2, "--counts", f"file:{file}"], "3 numbers for 2 ranks")
            file.write_text("5 x 7")
            self.refuses(64, ["bench", "all_gather", "-n", 3, "--counts", f"file:{file}"], "'x'", str(file))

    def test_every_format_has_the_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {ending: pathlib.Path(folder, f"r.{ending}") for ending in ("json", "ndjson", "csv", "md")}
            table = self.runs("bench", "all_gather,barrier", "-n", 3, "--backend", "local", "-s", "48,4800,48000",
                              "--counts", "linear", "--iters", 3, "--warmup", 0,
                              *[argument for file in files.values() for argument in ("--out", file)])
            texts = {ending: file.read_text() for ending, file in files.items()}
        run = json.loads(texts["json"])
        rows = list(csv.DictReader(io.StringIO(texts["csv"]), strict=True))
        self.assertEqual([row["counts"] for row in rows],
                         ["2 4 6", "200 400 600", "2000 4000 6000", ""])
        self.assertEqual([row["layout"] for row in rows], 3 * ["linear"] + [""])
        lines = [json.loads(line) for line in texts["ndjson"].splitlines()]
        self.assertEqual([line["counts"] for line in lines], [row["counts"] for row in run["results"]])
        self.assertIn("\n## all_gather  f32  out-of-place  counts linear\n\n| size | p50", texts["md"])
        self.assertRegex(table, r"\n +48 B +[\d.]+")
        self.check_schema("bench", [run], row_changes=({"place": "between"}, {"counts": "2 4 6"}, {"layout": 3}))

    def test_sizes_help_says_what_the_layouts_and_factors_are(self):
        text = self.runs("bench", "--help-sizes")
        for layout in (*LAYOUTS, "file:PATH"):
            self.assertRegex(text, rf"\n  {layout.replace('1.2', 'A')} +\S")
        for coll in DIVIDED:
            self.assertRegex(text, rf"\n  {coll} +\(n-1\)/n")
            self.assertRegex(text, rf"\n  {coll} +.*\(S - (min b|b_root|b_r)\)/S")
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)


def at(run, row, column):
    """The value of a column of the flat formats: at its path in the row, or else in the run."""
    value = row if column.split(".")[0] in row else run
    for step in column.split(".", 1):
        value = None if value is None else value.get(step)
    return value


class OneSize(Program):
    def test_calls_of_one_size_share_a_table(self):
        text = self.runs("bench", "all_reduce,broadcast,barrier", "-n", 2, "--backend", "local", "-s", "48K", "-d",
                         "f32,bf16", "--iters", 3)
        self.assertEqual(text.count("p50"), 1, text)
        self.assertEqual(re.findall(r"^ +48 KiB .*  ok +3[ !~^]+([a-z].*)$", text, re.M),
                         ["all_reduce  f32 sum  out-of-place", "all_reduce  bf16 sum  out-of-place",
                          "broadcast  f32  in-place  root 0", "broadcast  bf16  in-place  root 0"], text)
        self.assertRegex(text, r"(?m)^ .* barrier$")

    def test_calls_of_two_sizes_have_tables_of_their_own(self):
        text = self.runs("bench", "all_reduce,barrier", "-n", 2, "--backend", "local", "-s", "48K,96K", "--iters", 3)
        self.assertEqual(text.count("p50"), 2, text)


class Outputs(Program):
    """One measurement in every format: the same rows, the same values."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            files = {ending: pathlib.Path(folder, f"r.{ending}") for ending in ("json", "ndjson", "csv", "md")}
            outs = [argument for file in files.values() for argument in ("--out", file)]
            done = tutti("bench", "all", "-n", 2, "--backend", "local", "-s", "48,4800,480000", "-d", "f32,i64",
                         "--order", "random", "--samples", "all", "--iters", 3, "--warmup", 0, "--percentiles",
                         "5,99.9", *outs)
            if done.returncode != 0:
                raise AssertionError(done.stderr)
            cls.texts = {ending: file.read_text() for ending, file in files.items()}
        cls.whole = json.loads(cls.texts["json"])

    def columns(self):
        """Every value of a row has a column."""
        names = ["started", "status", "tool.version", "tool.git", "backend.name", "backend.transport", "world.hosts",
                 "config.mode", "config.rank_agg"]
        for key, value in self.whole["results"][0].items():
            inner = ["rank", "array", "index", "expected", "got"] if key == "first_wrong" else value
            names += [f"{key}.{name}" for name in inner] if isinstance(value, dict) or key == "first_wrong" else [key]
        return names

    def test_ndjson_has_the_rows_of_the_json(self):
        lines = [json.loads(line) for line in self.texts["ndjson"].splitlines()]
        self.assertEqual(len(lines), len(self.whole["results"]))
        for line, row in zip(lines, self.whole["results"]):
            self.assertEqual(list(line), self.columns())
            for column, value in line.items():
                self.assertEqual(value, at(self.whole, row, column), column)

    def test_csv_has_the_rows_of_the_json(self):
        lines = list(csv.DictReader(io.StringIO(self.texts["csv"]), strict=True))
        self.assertEqual(len(lines), len(self.whole["results"]))

        def text(value):
            if isinstance(value, list):
                return " ".join(map(text, value))
            return "" if value is None else value if isinstance(value, str) else json.dumps(value)

        def bits(field):
            return [float(item) if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?", item) else item for item in field.split()]

        for line, row in zip(lines, self.whole["results"]):
            self.assertEqual(list(line), self.columns())
            for column, field in line.items():
                self.assertEqual(bits(field), bits(text(at(self.whole, row, column))), column)

    def test_markdown_has_a_table_for_every_sweep_in_order_of_size(self):
        text = self.texts["md"]
        self.assertRegex(text, r"^# tutti bench \S+: 2 ranks / 1 host  local\n")
        tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| size")]
        sweeps = {(row["coll"], row["dtype"], row["op"], row["place"], row["root"]) for row in self.whole["results"]}
        self.assertEqual(len(tables), len(sweeps))
        self.assertEqual(text.count("\n## "), len(sweeps))
        self.assertIn("\n## all_reduce  i64 sum  out-of-place\n", text)
        for table in tables:
            rate = "msg/s | " if "msg/s" in table[0] else ""
            self.assertEqual({line.count("|") for line in table}, {11 if rate else 10})
            self.assertEqual(table[0], f"| size | p5 µs | p99.9 µs | max µs | algbw GB/s | busbw GB/s | {rate}check | "
                                       "iterations | flags |")
        self.assertEqual(sum("msg/s" in table[0] for table in tables), sum(coll in PAIRED for coll, *_ in sweeps))
        three = [table for table in tables if len(table) > 3]
        self.assertEqual(len(three), len(sweeps) - 1)  # All but barrier.
        for table in three:
            self.assertEqual([line.split(" | ")[0] for line in table[2:]], ["| 48 B", "| 4.7 KiB", "| 468.8 KiB"])

    def test_stdout_has_what_a_file_has(self):
        small = ["-n", 2, "-s", "8", "--iters", 2, "--warmup", 0]
        for form, start in (("ndjson", '{"started":'), ("csv", "started,status,"), ("md", "# tutti bench ")):
            self.assertTrue(self.runs("bench", *small, "-f", form).startswith(start), form)


class Signals(Program):
    """Ctrl-C and SIGTERM; rank 0's outputs are complete nevertheless."""

    def interrupted(self, signals, arguments, after, backend="local"):
        """Runs it, sends the signals when stdout or stderr has a line with `after`, returns the record and
        stderr."""
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, name) for name in ("r.json", "r.csv")]
            outs = [argument for file in files for argument in ("--out", str(file))]
            with subprocess.Popen([TUTTI, "bench", "-n", "2", "--backend", backend, *arguments, *outs], text=True,
                                  env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                for line in process.stdout:
                    if after in line:
                        break
                for signal_number in signals:
                    process.send_signal(signal_number)
                out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, err)
            run = json.loads(files[0].read_text())
            self.assertEqual(run["status"], "interrupted")
            rows = list(csv.DictReader(io.StringIO(files[1].read_text())))
            self.assertEqual([row["status"] for row in rows], ["interrupted"] * len(run["results"]))
            self.assertEqual(sorted(os.listdir(folder)), ["r.csv", "r.json"])
            return run, out, err

    def test_ctrl_c_finishes_the_size_and_writes_everything(self):
        # Two signals at once, as from a terminal and from a launcher, are one Ctrl-C.
        run, out, err = self.interrupted([signal.SIGINT, signal.SIGINT],
                                         ["-s", "8,16,32,64,128,256", "--min-time", "100ms"], " 8 B ")
        sizes = [row["bytes"] for row in run["results"]]
        self.assertIn(len(sizes), range(1, 5), sizes)
        if len(sizes) > 1:  # The line of the first size has been read.
            self.assertRegex(out.splitlines()[len(sizes) - 2], rf"^ +{sizes[-1]} B ")
        self.assertIn(f"interrupted: {6 - len(sizes)} of 6 rows were not measured", run["notes"])
        self.assertIn("0 wrong elements", out)
        self.assertIn("interrupted: this size is the last one", err)

    def test_a_second_ctrl_c_soon_after_the_first_ends_the_size(self):
        start = time.monotonic()
        with subprocess.Popen([TUTTI, "bench", "-n", "2", "--backend", "local", "-s", "64M", "--min-time", "60s"],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while " p50 " not in process.stdout.readline():
                self.assertIsNone(process.poll())
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertLess(time.monotonic() - start, 20)

    def test_sigterm_ends_the_size_too(self):
        start = time.monotonic()
        run, _, _ = self.interrupted([signal.SIGTERM], ["-s", "8,16", "--iters", "1000000"], " p50 ")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(run["results"], [])

    def test_ctrl_c_while_the_ranks_meet_ends_it_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "TUTTI_STORE": f"file://{folder}"}
            with subprocess.Popen([TUTTI, "bench", "--backend", "local", "--out", folder + "/r.json"], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                while not [name for name in os.listdir(folder) if "r.json" not in name]:
                    self.assertIsNone(process.poll())  # It has not reached the store yet.
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=20)
            self.assertEqual(process.returncode, 130)
            self.assertFalse([name for name in os.listdir(folder) if "r.json" in name])


class Processes(Program):
    """Ranks that are processes."""

    @classmethod
    def setUpClass(cls):
        info = json.loads(tutti("info", "-f", "json").stdout)
        if not any(backend["name"] == "gloo" and backend["available"] for backend in info["backends"]):
            raise unittest.SkipTest("the backend gloo is not in this build")
        cls.on_one_host = next(choice["backend"] for choice in info["auto"]
                               if (choice["device"], choice["ranks"]) == ("cpu", "processes of one host"))

    check_rows = Bench.check_rows
    interrupted = Signals.interrupted
    two = ("-n", 2, "--backend", "gloo")

    def test_all_collectives_are_right(self):
        runs = []
        for ranks in (2, 3):
            run = self.measures("all", "-n", ranks, "--backend", "gloo", "-s", "12e,12000e", *QUICK)
            self.assertEqual({row["coll"] for row in run["results"]}, collectives_of(ranks))
            self.check_rows(run, ranks)
            self.assertEqual(len({rank["pid"] for rank in run["world"]["ranks"]}), ranks)
            self.assertIs(run["world"]["threads"], False)
            self.assertEqual(run["backend"]["name"], "gloo")
            self.assertEqual(run["backend"]["transport"], "tcp/lo")
            self.assertEqual(run["env"], {})
            runs.append(run)
        self.check_schema("bench", runs)

    def test_uneven_blocks_are_right(self):
        for ranks in (2, 3):
            run = self.measures("all", "-n", ranks, "--backend", "gloo", "-s", "12e,300000e", "--counts",
                                "linear,one-only", "--iters", 2, "--warmup", 0, "-f", "json")
            self.assertEqual({row["coll"] for row in run["results"]}, collectives_of(ranks))
            for row in run["results"]:
                self.assertIn(row["wrong"], (0, None), row)
                if row["coll"] in DIVIDED:
                    self.assertEqual(sum(row["counts"]), row["count"])

    def test_rank_0_alone_prints_and_says_what_is_used(self):
        done = tutti("bench", *self.two, "-s", "1K", "--iters", 3, "-q", "--expect-ranks", 2)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^tutti bench \S+  all_reduce .* 2 ranks / 1 host  gloo tcp/lo\n")
        self.assertEqual(done.stdout.count("tutti bench"), 1)
        self.assertRegex(done.stdout, r"\n  0 \S+ pid \d+ cpu \S+ \| 1 \S+ pid \d+ cpu")
        self.refuses(64, ["bench", *self.two, "-s", "7"], "'7'")
        self.refuses(64, ["bench", *self.two, "--out", "/nowhere/r.json"], "/nowhere/r.json")

    def test_a_launcher_s_ranks_measure_together(self):
        for backend, arguments in (("gloo", ["--backend", "gloo"]), (self.on_one_host, []),
                                   ("gloo", ["-n", "2", "--backend", "gloo"])):
            out = self.runs("run", "-n", 2, "--", TUTTI, "bench", *arguments, "-s", "1K", "--iters", 3)
            self.assertIn(f"2 ranks / 1 host  {backend}", out)
            self.assertEqual({line[:4] for line in out.splitlines()}, {"[0] "})

    def test_ranks_that_are_bound_to_cpus_of_their_own_do_not_share_them(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("there is one CPU")
        bound = ("import os, sys; cpus = sorted(os.sched_getaffinity(0)); "
                 "os.sched_setaffinity(0, {cpus[int(os.environ['LOCAL_RANK'])]}); os.execv(sys.argv[1], sys.argv[1:])")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "r.json")
            self.runs("run", "-n", 2, "--", sys.executable, "-c", bound, TUTTI, "bench", "-s", "1K", "--iters", 3, "-q",
                      "--out", file)
            world = json.loads(file.read_text())["world"]
        self.assertEqual((world["cpus"], world["oversubscribed"]), (2, False))
        self.assertEqual(len({rank["cpuset"] for rank in world["ranks"]}), 2)

    def test_two_nodes_measure_together(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        common = ["bench", "-n", "1", "--backend", "gloo", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{port}",
                  "-s", "1K", "--iters", "3", "-f", "json", "--timeout", "10s"]
        nodes = [subprocess.Popen([TUTTI, *common, "--node-rank", str(node)], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for node in range(2)]
        results = [(*node.communicate(timeout=60), node.returncode) for node in nodes]
        self.assertEqual([code for _, _, code in results], [0, 0], results)
        self.assertEqual(json.loads(results[0][0])["world"]["size"], 2)
        self.assertEqual(results[1][0], "")

    def test_ctrl_c_finishes_the_size_on_all_ranks(self):
        run, out, err = self.interrupted([signal.SIGINT], ["-s", "8,16,32,64,128,256", "--min-time", "100ms"], " 8 B ",
                                         backend="gloo")
        self.assertIn(len(run["results"]), range(1, 5))
        self.assertEqual(err.count("interrupted: this size is the last one"), 1)
        self.assertIn("0 wrong elements", out)

    def test_a_second_ctrl_c_keeps_the_rows_and_is_no_success(self):
        own = [TUTTI, "bench", *map(str, self.two)]
        under_run = [TUTTI, "run", "-n", "2", "--", TUTTI, "bench", "--backend", "gloo"]
        for program in (own, under_run):
            with self.subTest(program=program), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "r.json")
                # The first size is measured at once, the second takes minutes.
                command = [*program, "-s", "8,16M", "--iters", "10000", "--warmup", "1", "--out", str(file)]
                with subprocess.Popen(command, text=True, env=ENVIRONMENT, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) as process:
                    head = next((line for line in process.stdout if " 8 B " in line), "")
                    for pause in (1.2, 0):
                        process.send_signal(signal.SIGINT)
                        time.sleep(pause)
                    out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, err)
                self.assertIn(" 8 B ", head)
                self.assertIn("0 wrong elements", out)
                run = json.loads(file.read_text())
                self.assertEqual((run["status"], [row["bytes"] for row in run["results"]]), ("interrupted", [8]))

    def with_failure(self, signal_number, *arguments):
        """Sends the signal to rank 1 during its measurement; returns status, record, stderr."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "r.json")
            with subprocess.Popen([TUTTI, "bench", *map(str, self.two), "-s", "8,16", "--iters", "1000000", *arguments,
                                   "--out", str(file)], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as process:
                head = ""
                for line in process.stdout:
                    head += line
                    if " p50 " in line:
                        break
                os.kill(int(re.search(r"\b1 \S+ pid (\d+) ", head).group(1)), signal_number)
                _, err = process.communicate(timeout=60)
            return process.returncode, json.loads(file.read_text()), err

    def test_a_rank_that_is_killed_is_named_and_the_record_is_written(self):
        code, run, err = self.with_failure(signal.SIGKILL)
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertRegex(err, r"rank 1 \(pid \d+\) was ended by signal 9")
        self.assertIn(run["status"], ("error", "interrupted"))

    def test_a_rank_that_is_stopped_is_missing_in_the_hang_report(self):
        code, run, err = self.with_failure(signal.SIGSTOP, "--timeout", "1s")
        self.assertEqual(code, 124, err)
        self.assertEqual(run["status"], "timeout")
        self.assertRegex(err, r"error: \w+ timed out after 1 s \(.*group world\)")
        self.assertRegex(err, r"\n  missing : 1 \(\S+, pid \d+\) sent no report: killed, stopped or stuck\n")


class Refusals(Program):
    def test_bench_says_what_is_wrong_with_an_option(self):
        two = ["bench", "-n", "2"]
        for arguments, words in (
                (["bench", "-n", "0"], ["-n '0'", "from 1 to"]),
                (["bench", "-n", "100000"], ["-n '100000'", "from 1 to"]),
                (["bench", "-n", "-3"], ["-3"]),
                (["bench", "-n", "two"], ["-n 'two'"]),
                ([*two, "--backend", "gluu"], ["gluu", "local"]),
                ([*two, "-s", "10Q"], ["'10Q'", "unknown suffix 'Q'"]),
                ([*two, "-s", "1M:1K"], ["'1M:1K'", "above"]),
                ([*two, "-s", "7"], ["'7'", "multiple of 4"]),
                (["bench", "all", "-n", "3", "-s", "1K"], ["'1K'", "3 ranks", "multiple of 12"]),
                ([*two, "-s", "9999999T"], ["'9999999T'", "63 bits"]),
                ([*two, "-s", "9223372036854775800"], ["8192.0 PiB", "free"]),
                ([*two, "-s", "4096T"], ["4 PiB", "free"]),
                ([*two, "-d", "float33"], ["'float33'", "bf16"]),
                ([*two, "-o", "xor"], ["'xor'", "bxor"]),
                ([*two, "-o", "custom"], ["'custom': unknown", "premul_sum"]),
                ([*two, "-o", "band"], ["band", "f32"]),
                ([*two, "-d", "complex64", "-o", "max"], ["max", "complex64", "orders"]),
                ([*two, "-d", "boolean", "-o", "avg"], ["avg", "boolean"]),
                ([*two, "scan", "-o", "avg"], ["avg", "scan"]),
                ([*two, "all_gathr"], ["'all_gathr'", "all_gather"]),
                ([*two, "broadcast", "--root", "2"], ["--root 2", "0 to 1"]),
                ([*two, "broadcast", "--root", "x"], ["--root 'x'"]),
                ([*two, "--root", "0"], ["--root", "has a root"]),
                ([*two, "all_to_all", "--place", "in"], ["all_to_all", "in-place"]),
                ([*two, "--place", "inside"], ["'inside'", "both"]),
                ([*two, "all_gather", "--counts", "skewed"], ["'skewed'", "last-short", "zipf:A", "file:PATH"]),
                ([*two, "all_gather", "--counts", "even,zipf"], ["zipf:A", "0 to 16"]),
                ([*two, "all_gather", "--counts", "file:/nowhere/f"], ["/nowhere/f", "cannot be read"]),
                ([*two, "--counts", "linear"], ["--counts", "into blocks"]),
                (["bench", "-n", "1", "scatter", "--counts", "one-empty"], ["one-empty", "two ranks"]),
                ([*two, "all_gather", "--counts", "linear", "-s", "7"], ["'7'", "multiple of 4"]),
                ([*two, "all_gather", "--algo", "ring"], ["--algo"]),
                ([*two, "--mode", "fast"], ["'fast'", "latency"]),
                ([*two, "--min-time", "5"], ["--min-time '5'", "0.5s"]),
                ([*two, "--timeout", "0s"], ["--timeout"]),
                ([*two, "--iters", "0"], ["--iters '0'"]),
                ([*two, "--warmup", "some"], ["--warmup 'some'"]),
                ([*two, "--warm-up", "1"], ["--warm-up; did you mean --warmup?"]),
                ([*two, "--min-bytes", "8"], ["--min-bytes; did you mean --sizes"]),
                ([*two, "--percentiles", "101"], ["'101'"]),
                ([*two, "--check", "last"], ["'last'", "first"]),
                ([*two, "--seed", "-1"], ["--seed"]),
                ([*two, "-f", "yaml"], ["'yaml'", "json"]),
                ([*two, "--samples", "all"], ["--samples"]),
                ([*two, "--samples", "all", "-f", "md"], ["--samples"]),
                ([*two, "-q", "-v"], ["-q"]),
                ([*two, "--nnodes", "2"], ["--nnodes 2", "--rendezvous"]),
                ([*two, "--nnodes", "2", "--node-rank", "2"], ["--node-rank '2'", "0 to 1"]),
                (["bench", "--nnodes", "2", "--rendezvous", "h:1"], ["--nnodes", "-n"]),
                ([*two, "--backend", "local", "--nnodes", "2", "--rendezvous", "h:1"], ["--nnodes 2", "local"]),
                ([*two, "--backend", "local", "--iface", "eth0"], ["local", "'eth0'"]),
                ([*two, "--backend", "local:x", "--iface", "eth0"], ["--iface eth0", "local:x"]),
                ([*two, "--store", "memory://x"], ["--store memory://x", "-n"]),
                ([*two, "--expect-ranks", "0"], ["--expect-ranks '0'"]),
                ([*two, "--backend", "local", "--threads-per-proc", "1"], ["--threads-per-proc 1", "local"]),
                ([*two, "-m", "0"], ["--aggregate '0'", "1 to 1000"]),
                ([*two, "all_gather_rows", "-m", "2"], ["--aggregate", "all_gather_rows", "Work"]),
                ([*two, "create", "--overlap"], ["--overlap", "create", "Work"]),
                ([*two, "create", "-s", "8"], ["--sizes", "moves data"]),
                ([*two, "-a", "4"], ["--rank-agg '4'", "rank0"]),
                ([*two, "--frobnicate"], ["--frobnicate"]),
                ([*two, "--sizes"], ["--sizes"])):
            self.refuses(64, arguments, "error: ", *words)

    def test_subcommands(self):
        self.refuses(64, ["bensh"], "'bensh'", "run, bench, compare, check, report, info, diagnose, doctor, schema, help")
        self.refuses(64, [], "run, bench, compare, check, report, info, diagnose, doctor, schema, help")
        self.refuses(64, ["--frobnicate"], "--frobnicate")
        self.refuses(64, ["info", "-f", "xml"], "'xml'")
        self.refuses(64, ["info", "more"], "more")

    def test_devices(self):
        self.refuses(64, ["bench", "-n", "2", "--device", "gpu"], "--device 'gpu'", "cpu, cuda or cuda:N")
        self.refuses(64, ["bench", "-n", "2", "--device", "cuda:x"], "--device cuda:N 'x'")
        self.refuses(69, ["bench", "-n", "2", "--backend", "local", "--device", "cuda"], "--backend local --device cuda",
                     "does not serve cuda:0")

    def test_a_machine_without_a_gpu_says_what_is_missing(self):
        info = json.loads(self.runs("info", "-f", "json"))
        nccl = next(entry for entry in info["backends"] if entry["name"] == "nccl")
        if not nccl["built"]:
            self.skipTest("this build has no backend nccl")
        if nccl["available"]:
            self.skipTest("this machine has a GPU")
        why = nccl["unavailable_because"]
        library = "libnccl.so.2" if "libnccl" in why else "libcudart.so" if "libcudart" in why else "CUDA sees no device"
        self.assertIn(library, why)
        if library != "CUDA sees no device":
            self.assertIn("; install ", why)
        for options in (["--backend", "nccl"], ["--backend", "nccl", "--device", "cuda"], ["--device", "cuda"],
                        ["--backend", "nccl", "--threads-per-proc", "2"]):
            self.refuses(69, ["bench", "-n", "2", *options], why)
            self.refuses(77, ["bench", "-n", "2", *options, "--skip-unavailable"], "skipped: ", why)
        self.refuses(69, ["bench", "-n", "2", "--backend", "nccl", "--device", "cpu"], why)

    def test_ranks_may_be_threads_of_this_process_over_any_backend(self):
        info = json.loads(self.runs("info", "-f", "json"))
        backend = "gloo" if any(e["name"] == "gloo" and e["available"] for e in info["backends"]) else "local"
        run = self.measures("-n", 2, "--threads-per-proc", 2, "--backend", backend, "-s", 64, *QUICK)
        self.assertTrue(run["world"]["threads"])
        self.assertEqual(len({rank["pid"] for rank in run["world"]["ranks"]}), 1)
        self.refuses(64, ["bench", "-n", "4", "--threads-per-proc", "2"], "--threads-per-proc 2", "equal to -n")
        self.refuses(64, ["bench", "--threads-per-proc", "1x", "-n", "2"], "--threads-per-proc")

    def test_a_known_backend_that_is_not_built_is_unavailable_or_skipped(self):
        built = {backend["name"] for backend in json.loads(self.runs("info", "-f", "json"))["backends"]
                 if backend["built"]}
        for missing in {"hier", "ucx", "shm", "nccl", "gloo"} - built:
            self.refuses(69, ["bench", "-n", "2", "--backend", missing], missing, "local")
            self.refuses(77, ["bench", "-n", "2", "--backend", missing, "--skip-unavailable"], "skipped: ", missing)
        self.refuses(64, ["bench", "-n", "2", "--backend", "gluu", "--skip-unavailable"], "gluu")

    def test_without_n_the_ranks_are_the_launchers(self):
        self.refuses(64, ["bench"], "-n N")
        one = self.measures("-s", "1K", *QUICK, RANK="0", WORLD_SIZE="1")
        self.assertEqual(one["world"]["size"], 1)
        self.assertIs(one["world"]["threads"], False)
        self.refuses(69, ["bench"], "TUTTI_STORE", "--store", "2 ranks", RANK="0", WORLD_SIZE="2")
        self.refuses(69, ["bench"], "WORLD_SIZE", RANK="0")
        self.refuses(64, ["bench", "--store", "nowhere"], "'nowhere'", RANK="0", WORLD_SIZE="2")
        self.refuses(69, ["bench", "-n", "2", "--expect-ranks", "4"], "--expect-ranks 4", "has 2 ranks")
        self.measures("-n", 2, "-s", "1K", "--expect-ranks", 2, "--backend", "local", *QUICK)

    def test_a_program_that_runs_alone_in_each_of_many_processes_is_refused(self):
        self.refuses(69, ["bench", "-n", "2"], "launcher started 16 processes (WORLD_SIZE=16)", "has 2 ranks",
                     RANK="3", WORLD_SIZE="16")
        self.refuses(69, ["bench", "-n", "1"], "launcher started 16 processes (OMPI_COMM_WORLD_SIZE=16)", "has 1 rank.",
                     OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="16")
        self.refuses(69, ["bench", "-n", "1"], "(PMI_SIZE=4)", PMI_RANK="3", PMI_SIZE="4")
        # A job's script is one process, however many tasks the job has.
        self.measures("-n", 2, "-s", "1K", "--backend", "local", *QUICK, SLURM_JOB_ID="7")

    def test_local_over_processes_is_unavailable_on_every_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            # Rank 0 keeps values that a late rank would read, which AddressSanitizer would report as a leak.
            sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
            environment = {**os.environ, "WORLD_SIZE": "2", "TUTTI_STORE": f"file://{folder}",
                           "ASAN_OPTIONS": sanitizer}
            ranks = [subprocess.Popen([TUTTI, "bench", "--backend", "local", "-s", "8", "--timeout", "1s"],
                                      env={**environment, "RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) for rank in range(2)]
            results = [(*rank.communicate(timeout=60), rank.returncode) for rank in ranks]
        # Rank 1 detects that rank 0 is another process; rank 0 does not wait and then reports the reason.
        self.assertEqual([code for _, _, code in results], [69, 69], results)
        self.assertIn("threads of one process", results[0][1])
        self.assertEqual(results[1][1], "")


class Others(Program):
    def test_info_lists_every_backend_and_what_auto_picks(self):
        info = json.loads(self.runs("info", "-f", "json"))
        names = [backend["name"] for backend in info["backends"]]
        self.assertIn("local", names)
        self.assertIn("gloo", names)
        local = info["backends"][names.index("local")]
        self.assertEqual((local["built"], local["available"], local["serves"]), (True, True, ["cpu"]))
        choices = {(choice["device"], choice["ranks"]): choice for choice in info["auto"]}
        self.assertEqual(choices["cpu", "threads"]["backend"], "local")
        host = choices["cpu", "processes of one host"]
        has_shm = any(backend["name"] == "shm" and backend["available"] for backend in info["backends"])
        self.assertEqual(host["backend"] == "shm", has_shm)
        self.assertIn("not local: its ranks are threads", host["because"])
        self.assertIn("processes of several hosts", choices["cpu", "processes of several hosts"]["because"])
        self.assertTrue(info["library"]["matches"])
        text = self.runs("info")
        if has_shm:
            shm = "\n".join(info["backends"][names.index("shm")]["details"])
            for output in (text, shm):
                self.assertRegex(output, r"\n *all_gather( +(reads|slots)){3}\b")
        self.assertRegex(text, r"\n  local +available +cpu: \S")
        self.assertRegex(text, r"\nauto\n  cpu +threads +local: \S.*\n  cpu +processes of one host +\w+: \S")
        self.assertIn(info["tool"]["version"], text)

    def test_help_and_version(self):
        self.assertRegex(self.runs("--version"), r"^tutti \d+\.\d+\.\d+\n$")
        subcommands = re.findall(r"^  (\w+) {3,}", self.runs("--help").partition("Subcommands:")[2], re.M)
        self.assertIn("bench", subcommands)
        text = self.runs("bench", "--help")
        for option in ("--sizes", "--dtype", "--min-time", "--check", "--out", "--help-sizes"):
            self.assertIn(option, text)
        self.assertNotIn("--groups", text)
        text = self.runs("bench", "--help-sizes")
        for collective in COLLECTIVES:
            self.assertRegex(text, rf"\n  {collective} +\S+ +\w")
        self.assertRegex(text, r"all_reduce +2\(n-1\)/n ")
        self.assertRegex(text, r"scan +1 ")


if __name__ == "__main__":
    main()
