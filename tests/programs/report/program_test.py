"""`tutti compare`, `tutti check` and `tutti report` as a user types them: program_test.py PATH_OF_TUTTI [unittest
arguments]."""
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest.mock

import package

sys.path.insert(0, str(package.ROOT / "tests/programs/tool"))

import driver  # noqa: E402
import tutti_report.__main__  # noqa: E402
from driver import Program, main, tutti  # noqa: E402

# tutti-report of the sources, with this Python.
driver.ENVIRONMENT["PATH"] = f"{os.path.dirname(sys.executable)}:{package.ROOT / 'python'}:{os.environ['PATH']}"
BENCH = f"{driver.TUTTI} bench -n 2 -s 64K --iters 200 --warmup 50 --backend"


class Report(Program):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def saved(self, name, change=None, *arguments):
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
        if "gloo" not in {entry["name"] for entry in json.loads(self.runs("info", "-f", "json"))["backends"] if entry["available"]}:
            self.skipTest("no backend gloo")
        # A call takes 5 to 10 times as long over gloo: so few of 16 rounds are otherwise, also on a busy machine.
        run = json.loads(self.ends(1, "compare", "--run", f"{BENCH} local", f"{BENCH} gloo", "--rounds", 16, "-f", "json"))
        self.assertEqual((run["unit"], run["only_old"], run["only_new"]), ("round", [], []))
        row, = run["results"]
        self.assertEqual((row["result"], row["old_units"], row["new_units"]), ("slower", 16, 16))
        self.assertGreater(row["ratio"], 1.5)
        self.assertLess(row["interval"]["low"], row["ratio"])
        run = json.loads(self.ends(0, "compare", "--run", f"{BENCH} gloo", f"{BENCH} local", "--rounds", 16, "-f", "json"))
        self.assertEqual(run["results"][0]["result"], "faster")

    def test_rounds_end_in_time_and_say_if_they_were_too_few(self):
        table = self.ends(0, "compare", "--run", f"{BENCH} local", f"{BENCH} local", "--max-total", "1ms")
        self.assertIn("over 1 round;", table)
        self.assertIn("1 row with 1 round on each side: a difference can be significant from 8 on", " ".join(table.split()))

    def test_a_command_that_fails_ends_the_comparison_with_its_code(self):
        done = tutti("compare", "--run", f"{BENCH} local", "exit 69")
        self.assertEqual((done.returncode, done.stdout), (69, ""))
        self.assertIn("'exit 69' ended with 69", done.stderr)
        done = tutti("compare", "--run", f"{BENCH} local", "echo hello")
        self.assertEqual((done.returncode, done.stdout), (64, ""))
        self.assertIn("output of 'echo hello': expected the JSON", done.stderr)

    def test_files_are_compared_with_all_rows_and_differences(self):
        old = self.saved("old", None, "--op", "sum,max")

        def change(run):
            run["env"]["NCCL_ALGO"] = "Ring"
            run["results"] = [row for row in run["results"] if row["op"] == "sum"]
            for row in run["results"]:
                row["time_us"]["p50"] *= 10
                row["block_p50_us"] = [10 * us for us in row["block_p50_us"]]

        new = self.changed(old, "new", change)
        whole, markdown = self.folder / "c.json", self.folder / "c.md"
        table = self.ends(1, "compare", old, new, "--threshold", "50%", "--out", whole, "--out", markdown)
        self.assertRegex(table, r"(?m)^  ! differs: NCCL_ALGO: unset -> Ring$")
        for size in ("1 KiB", "64 KiB"):
            self.assertRegex(table, rf"(?m)^ +{size} .* SLOWER$")
            self.assertIn(f"only in OLD: all_reduce f32 max {size}, 2 ranks\n", table)
        self.assertIn("\n2 of 2 rows slower by 50% or more", table)
        self.assertTrue(all(len(line) <= 80 for line in table.splitlines()[3:-1]), table)
        self.assertEqual([row["result"] for row in json.loads(whole.read_text())["results"]], ["slower"] * 2)
        self.assertIn("| all_reduce f32 sum  2 ranks | 1 KiB |", markdown.read_text())
        self.assertEqual(len({line.count("|") for line in markdown.read_text().splitlines() if line.startswith("|")}), 1)
        self.ends(0, "compare", new, old)  # Faster is no failure.

    def test_lists_and_directories_of_files_are_runs(self):
        names = [str(self.saved(f"r{i}")) for i in range(2)]
        run = json.loads(self.ends(0, "compare", ",".join(names), self.folder, "-f", "json"))
        self.assertEqual((run["unit"], run["results"][0]["old_units"], run["results"][0]["new_units"]), ("run", 2, 2))

    def test_wrong_data_is_worse_than_slow(self):
        old = self.saved("old")
        new = self.saved("new", lambda run: run["results"][0].update(wrong=3))
        self.assertIn(f"wrong data: {new}: all_reduce f32 sum 1 KiB, 2 ranks: 3 wrong elements",
                      " ".join(self.ends(2, "compare", old, new).split()))

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
        run = self.saved("run", lambda run: run.update(status="interrupted"))
        self.assertIn("(status interrupted)", self.ends(1, "check", run, "--require", "* : wrong == 0"))

    def test_check_compares_with_a_baseline(self):
        def faster(base):
            for row in base["results"]:
                row["block_p50_us"] = [us / 10 for us in row["block_p50_us"]]

        def lost(base):
            del base["results"][0]

        run = self.saved("run")
        base, new = self.changed(run, "base", faster), self.changed(run, "lost", lost)
        self.assertRegex(self.ends(1, "check", run, "--baseline", base), r"(?m)^FAIL  --baseline .*2 of 2 rows slower")
        self.assertRegex(self.ends(0, "check", base, "--baseline", run, "--tolerance", "50%"), r"(?m)^PASS  --baseline ")
        self.assertRegex(self.ends(1, "check", new, "--baseline", run, "--tolerance", "99%"), r"(?m)^FAIL  --baseline ")

    def test_runs_are_drawn(self):
        run = self.saved("run", None, "--samples", "all")
        for name, head in (("r.svg", b"<?xml"), ("r.png", b"\x89PNG"), ("r.pdf", b"%PDF")):
            self.ends(0, "report", run, run, "-o", self.folder / name)
            self.assertTrue((self.folder / name).read_bytes().startswith(head))
        self.assertEqual([path.name for path in self.folder.glob("*.tmp")], [])

    def test_refusals(self):
        old, out = self.saved("old"), self.folder / "out.svg"
        broken = self.folder / "broken.json"
        broken.write_text(old.read_text().replace('"coll": "all_reduce"', '"coll": 7', 1))
        for arguments, *words in (
                (["compare", old], "NEW"), (["compare", old, "/nonexistent.json"], "/nonexistent.json", "No such file"),
                (["compare", old, broken], str(broken), "results[0].coll: expected a string, found 7"),
                (["compare", old, old, "--threshold", "100%"], "--threshold", "100"),
                (["compare", old, old, "--rounds", 3], "--rounds 3", "--run"), (["compare", old, old, "--rounds", "x"], "--rounds"),
                (["compare", old, old, "-f", "xml"], "'xml'"), (["compare", "--run", "tutti bench -f json", "tutti bench"], "-f json"),
                (["compare", old, old, "--out", "x.txt"], "x.txt"), (["compare", old, old, "--out", "/nonexistent/x.md"], "x.md"),
                (["compare", old, self.folder / "none"], "none"), (["check", old], "--require"), (["check"], "RUN"),
                (["check", old, "--require", "* : speed > 1"], "'* : speed > 1'", "metric 'speed'"),
                (["report", "-o", out], "FILE"), (["report", old], "-o"),
                (["report", old, "-o", "x.html"], "x.html", ".svg"),
                (["report", self.folder / "none.json", "-o", out], "none.json"), (["report", __file__, "-o", out], __file__)):
            with self.subTest(arguments=arguments):  # In this process: importing SciPy takes a second.
                err = io.StringIO()
                with contextlib.redirect_stderr(err), unittest.mock.patch("sys.argv", ["tutti-report", *map(str, arguments)]):
                    self.assertEqual(tutti_report.__main__.main(), 64)
                self.assertEqual(len(err.getvalue().splitlines()), 1, err.getvalue())
                for word in ("error: ", *words):
                    self.assertIn(word, err.getvalue())
        self.assertFalse(out.exists())
        self.assertEqual(tutti("check").returncode, 64)

    def test_without_the_package_tutti_says_what_to_install(self):
        self.refuses(64, ["compare", "a.json", "b.json"], "compare: tutti-report cannot be started", "numpy, scipy and matplotlib",
                     PATH="/nonexistent")


if __name__ == "__main__":
    main()
