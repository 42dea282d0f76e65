"""`tutti compare`, `tutti check` and `bench --baseline` as a user types them: compare_test.py PATH_OF_TUTTI
PATH_OF_SLOWED_BENCH [unittest arguments]."""
import json
import os
import pathlib
import sys
import tempfile

SLOWED = os.path.abspath(sys.argv.pop(2))

from driver import Program, main, tutti  # noqa: E402

SMALL = "-n 2 --backend local -s 64K --iters 200 --warmup 50"


def slowed(us):
    """A command of bench whose calls take so many microseconds longer."""
    return f"{SLOWED} 65536:{us} {SMALL}"


class Compare(Program):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def saved(self, name, *arguments, change=None):
        """A file of a run, its JSON changed by `change`."""
        file = self.folder / f"{name}.json"
        self.runs("bench", "-n", 2, "--backend", "local", "-s", "1K,64K", "--iters", 100, "--out", file, *arguments)
        return self.changed(file, name, change) if change else file

    def changed(self, file, name, change):
        """The run of `file`, changed: two runs may differ by as much as a change."""
        run = json.loads(file.read_text())
        change(run)
        new = self.folder / f"{name}.json"
        new.write_text(json.dumps(run))
        return new

    def ends(self, code, *arguments):
        done = tutti(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def test_rounds_find_a_program_that_is_slower(self):
        # A call takes about 15 us: so few of 16 rounds are otherwise, also on a busy machine.
        run = json.loads(self.ends(1, "compare", "--run", slowed(0), slowed(500), "--rounds", 16, "-f", "json"))
        self.assertEqual((run["unit"], run["differences"], run["only_old"], run["only_new"]), ("round", [], [], []))
        row, = run["results"]
        self.assertEqual((row["result"], row["old_units"], row["new_units"]), ("slower", 16, 16))
        self.assertGreater(row["ratio"], 1.5)
        self.assertLess(row["interval"]["low"], row["ratio"])
        run = json.loads(self.ends(0, "compare", "--run", slowed(500), slowed(0), "--rounds", 16, "-f", "json"))
        self.assertEqual(run["results"][0]["result"], "faster")

    def test_rounds_end_in_time_and_say_if_they_were_too_few(self):
        table = self.ends(0, "compare", "--run", slowed(0), slowed(500), "--max-total", "1ms")
        self.assertIn("over 1 round;", table)
        self.assertIn("1 row with 1 round on each side: a difference can be significant from 8 on", " ".join(table.split()))

    def test_a_command_that_fails_ends_the_comparison_with_its_code(self):
        done = tutti("compare", "--run", slowed(0), "exit 69")
        self.assertEqual((done.returncode, done.stdout), (69, ""))
        self.assertIn("'exit 69' ended with 69", done.stderr)
        done = tutti("compare", "--run", slowed(0), "echo hello")
        self.assertEqual((done.returncode, done.stdout), (64, ""))
        self.assertIn("output of 'echo hello': expected the JSON", done.stderr)

    def test_files_are_compared_with_all_rows_and_differences(self):
        old = self.saved("old", "--op", "sum,max")

        def change(run):
            run["env"]["NCCL_ALGO"] = "Ring"
            run["results"] = [row for row in run["results"] if row["op"] == "sum"]
            for row in run["results"]:
                row["time_us"]["p50"] *= 10
                row["block_p50_us"] = [10 * us for us in row["block_p50_us"]]

        new = self.changed(old, "new", change)
        files = {ending: self.folder / f"c.{ending}" for ending in ("json", "csv", "ndjson", "md")}
        outs = [argument for file in files.values() for argument in ("--out", file)]
        table = self.ends(1, "compare", old, new, "--threshold", "50%", *outs)
        self.assertRegex(table, r"(?m)^  ! differs: NCCL_ALGO: unset -> Ring$")
        for size in ("1 KiB", "64 KiB"):
            self.assertRegex(table, rf"(?m)^ +{size} .* SLOWER$")
            self.assertIn(f"only in OLD: all_reduce f32 max {size}, 2 ranks\n", table)
        self.assertIn("\n2 of 2 rows slower by 50% or more", table)
        self.assertTrue(all(len(line) <= 80 for line in table.splitlines()[3:-1]), table)
        whole = json.loads(files["json"].read_text())
        self.check_schema("compare", [whole], [{"unit": "sample"}], [{"result": "slow"}, {"p": None}])
        self.assertEqual([row["result"] for row in whole["results"]], ["slower"] * 2)
        self.assertEqual(len(files["csv"].read_text().splitlines()), 3)
        self.assertEqual(len(files["ndjson"].read_text().splitlines()), 2)
        markdown = files["md"].read_text()
        self.assertIn("| all_reduce f32 sum 2 ranks | 1 KiB |", markdown.replace("  ", " "))
        self.assertEqual(len({line.count("|") for line in markdown.splitlines() if line.startswith("|")}), 1)
        self.ends(0, "compare", new, old)  # Faster is no failure.

    def test_lists_and_directories_of_files_are_runs(self):
        names = [str(self.saved(f"r{i}")) for i in range(2)]
        run = json.loads(self.ends(0, "compare", ",".join(names), self.folder, "-f", "json"))
        self.assertEqual((run["unit"], run["results"][0]["old_units"], run["results"][0]["new_units"]), ("run", 2, 2))

    def test_wrong_data_is_worse_than_slow(self):
        old = self.saved("old")

        def change(run):
            run["results"][0]["wrong"] = 3

        new = self.saved("new", change=change)
        self.assertIn(f"wrong data: {new}: all_reduce f32 sum 1 KiB, 2 ranks: 3 wrong elements",
                      " ".join(self.ends(2, "compare", old, new).split()))

    def test_refusals(self):
        old = self.saved("old")
        broken = self.folder / "broken.json"
        broken.write_text(old.read_text().replace('"coll": "all_reduce"', '"coll": 7', 1))
        self.refuses(64, ["compare", old], "OLD and NEW")
        self.refuses(64, ["compare", old, "/nonexistent.json"], "/nonexistent.json", "No such file")
        self.refuses(64, ["compare", old, broken], str(broken), "results[0].coll: expected a string, found 7")
        self.refuses(64, ["compare", old, old, "--threshold", "100%"], "--threshold", "100")
        self.refuses(64, ["compare", old, old, "--rounds", 3], "--rounds 3", "--run")
        self.refuses(64, ["compare", old, old, "-f", "xml"], "'xml'")
        self.refuses(64, ["compare", "--run", "tutti bench -b 8 -e 64 -f 8", "tutti bench"], "-f 8", "--stepfactor")
        self.refuses(64, ["compare", old, old, "--out", "x.txt"], "x.txt")
        self.refuses(64, ["check", old], "--require")
        self.refuses(64, ["check"], "no run")
        self.refuses(64, ["check", old, "--require", "* : speed > 1"], "'* : speed > 1'", "metric 'speed'")
        self.refuses(64, ["bench", "-n", "2", "--baseline", "/nonexistent.json"], "/nonexistent.json")

    def test_bench_compares_with_a_baseline(self):
        def faster(run):
            for row in run["results"]:
                row["time_us"]["p50"] /= 100
                row["block_p50_us"] = [us / 100 for us in row["block_p50_us"]]

        def slower(run):
            for row in run["results"]:
                row["time_us"]["p50"] *= 100
                row["block_p50_us"] = [us * 100 for us in row["block_p50_us"]]

        same = ["-n", 2, "--backend", "local", "-s", "1K,64K", "--iters", 100]
        fast = self.saved("fast", change=faster)
        slow = self.saved("slow", change=slower)
        table = self.ends(1, "bench", *same, "--baseline", fast)
        self.assertEqual(table.count("SLOWER"), 2, table)
        self.assertIn("2 faster", self.ends(0, "bench", *same, "--baseline", slow))
        done = tutti("bench", *same, "--baseline", fast, "-f", "json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["status"]), (1, "ok"))
        self.assertEqual(done.stderr.count("SLOWER"), 2)
        self.assertIn("SLOWER", self.ends(1, "bench", *same, "--baseline", fast, "-f", "md"))

    def test_processes_compare_with_a_baseline_on_rank_0(self):
        names = {entry["name"] for entry in json.loads(self.runs("info", "-f", "json"))["backends"] if entry["available"]}
        if "shm" not in names:
            self.skipTest("no backend shm")

        def faster(run):
            for row in run["results"]:
                row["block_p50_us"] = [us / 100 for us in row["block_p50_us"]]

        options = ["-n", 2, "--backend", "shm", "-s", "64K", "--iters", 100]
        file = self.folder / "r.json"
        self.runs("bench", *options, "--out", file)
        self.changed(file, "r", faster)
        table = self.ends(1, "bench", *options, "--baseline", file)
        self.assertEqual(table.count("SLOWER"), 1, table)

    def test_check_prints_a_line_for_each_rule(self):
        run = self.saved("run")
        text = self.ends(1, "check", run, "--require", "all_reduce f32 >=64K : p50 < 10s", "--require",
                         "* : wrong == 0", "--require", "all_gather : p50 < 10s")
        self.assertRegex(text, r"(?m)^PASS  all_reduce f32 >=64K : p50 < 10s  \(1 row, worst .* µs: all_reduce f32 sum "
                               r"64 KiB, 2 ranks\)$")
        self.assertRegex(text, r"(?m)^PASS  \* : wrong == 0  ")
        self.assertRegex(text, r"(?m)^FAIL  all_gather : p50 < 10s  \(no row matches\)$")
        self.ends(0, "check", run, "--require", "* : wrong == 0")

    def test_check_fails_for_a_run_that_did_not_end(self):
        def change(run):
            run["status"] = "interrupted"

        run = self.saved("run", change=change)
        self.assertIn("(status interrupted)", self.ends(1, "check", run, "--require", "* : wrong == 0"))

    def test_check_compares_with_a_baseline(self):
        run = self.saved("run")

        def faster(base):
            for row in base["results"]:
                row["block_p50_us"] = [us / 10 for us in row["block_p50_us"]]

        base = self.changed(run, "base", faster)
        self.assertRegex(self.ends(1, "check", run, "--baseline", base), r"(?m)^FAIL  --baseline .*2 of 2 rows slower")
        self.assertRegex(self.ends(0, "check", base, "--baseline", run, "--tolerance", "50%"), r"(?m)^PASS  --baseline ")

        def lost(base):
            del base["results"][0]

        new = self.changed(run, "lost", lost)
        table = self.ends(1, "check", new, "--baseline", run, "--tolerance", "99%")
        self.assertRegex(table, r"(?m)^FAIL  --baseline ")


if __name__ == "__main__":
    main()
