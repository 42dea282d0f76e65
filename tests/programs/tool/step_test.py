"""`tutti bench step` as a user types it: step_test.py PATH_OF_TUTTI [unittest arguments]."""
import csv
import io
import json
import pathlib
import tempfile

from driver import TUTTI, Program, main, tutti

HOOKS = ["all_reduce", "fp16", "bf16", "noop"]
TIMES = ["communication_us", "compute_us", "overlap_us", "no_overlap_us", "calls_us"]


def small(**others):
    """Options of a quick run, with others."""
    options = {"model": "uniform:9x10000e", "bucket": "64K,100K", "compute": "1ms", "rounds": 2, "warmup": 0, **others}
    return [text for name, value in options.items() for text in (f"--{name}", value)]


def backends():
    """The backends of this build that serve ranks on host memory. ucx needs InfiniBand."""
    found = json.loads(tutti("info", "-f", "json").stdout)["backends"]
    return [backend["name"] for backend in found if backend["available"] and "cpu" in backend["serves"] and backend["name"] != "ucx"]


class StepProgram(Program):
    def steps(self, *arguments):
        done = tutti("bench", "step", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), " ".join(map(str, arguments)))
        return done.stdout

    def record(self, *arguments):
        return json.loads(self.steps(*arguments, "-f", "json"))

    def check(self, run, ranks, times, rounds=2):
        """Every row has right gradients, and exactly these times."""
        self.assertEqual((run["status"], run["world"]["size"]), ("ok", ranks))
        self.assertEqual([row["bucket_bytes"] for row in run["results"]], run["config"]["bucket_bytes"])
        for row in run["results"]:
            self.assertEqual((row["wrong"], row["first_wrong"]), (0, None), row)
            for name in TIMES:
                time = row[name]
                self.assertEqual(time is not None, name in times, name)
                if time is not None:
                    self.assertEqual(time["n"], rounds)
                    self.assertGreater(time["min"], 0)
                    self.assertLessEqual(time["min"], time["p50"])
                    self.assertLessEqual(time["p50"], time["max"])
            self.assertGreaterEqual(row["communication_cpu"], 0)


class Step(StepProgram):
    def test_every_hook_is_right_on_every_backend_and_any_number_of_ranks(self):
        for backend in backends():
            for ranks in (1, 2, 3):
                for hook in HOOKS:
                    with self.subTest(backend=backend, ranks=ranks, hook=hook):
                        run = self.record("-n", ranks, "--backend", backend, "--hook", hook, "--check", "all", *small())
                        self.check(run, ranks, TIMES[:4])
                        self.assertEqual((run["backend"]["name"], run["config"]["hook"]), (backend, hook))
                        self.assertIs(run["world"]["threads"], ranks == 1 or backend == "local")

    def test_every_dtype_and_both_places_of_the_gradients_are_right(self):
        for dtype in ("f16", "bf16", "f32", "f64"):
            for place in ([], ["--as-view"]):
                for hook in ("all_reduce", "bf16"):
                    run = self.record("-n", 3, "--backend", "local", "-d", dtype, "--hook", hook, *place, *small())
                    self.check(run, 3, TIMES[:4])
                    self.assertIs(run["config"]["as_view"], bool(place))

    def test_the_named_model_has_the_buckets_of_its_size(self):
        parameters, elements = 161, 25557032
        run = self.record("-n", 1, *small(model="resnet50", bucket="1M,25M", compute="0s", rounds=1, check="none", dtype="bf16"))
        self.assertEqual((run["config"]["parameters"], run["config"]["elements"]), (parameters, elements))
        narrow, wide = run["results"]
        self.assertGreater(narrow["buckets"], wide["buckets"])
        for row in (narrow, wide):
            self.assertGreaterEqual(row["bytes"], 2 * elements)
            self.assertLess(row["bytes"], 2 * elements + 64 * parameters)
        self.assertGreaterEqual(wide["buckets"], 2 * elements // (25 << 20))

    def test_buckets_have_the_sizes_that_were_asked_for(self):
        run = self.record("-n", 1, *small(model="uniform:8x4K", bucket="8K,4K"))
        wide, narrow = run["results"]
        self.assertEqual((wide["buckets"], wide["last_bucket_bytes"], wide["bytes"]), (4, 8192, 8 * 4096))
        self.assertEqual((narrow["buckets"], narrow["last_bucket_bytes"]), (8, 4096))

    def test_only_the_chosen_kinds_of_steps_are_measured(self):
        for compute, options, times in (("1ms", [], TIMES[:4]), ("1ms", ["--calls"], TIMES), ("0s", [], TIMES[:1]),
                                        ("0s", ["--calls"], ["communication_us", "calls_us"])):
            run = self.record("-n", 2, "--backend", "local", *small(compute=compute), *options)
            self.check(run, 2, times)
            for row in run["results"]:
                self.assertEqual((row["hidden"] is not None, row["bound_us"] is not None), 2 * (compute != "0s",))

    def test_the_numbers_follow_from_the_times(self):
        run = self.record("-n", 2, "--backend", "local", *small(), "--calls")
        for row in run["results"]:
            times = {name: row[name]["p50"] for name in TIMES}
            communication, compute, overlap = times["communication_us"], times["compute_us"], times["overlap_us"]
            bound = max(communication, compute) + communication * row["last_bucket_bytes"] / row["bytes"]
            for name, value in (("hidden", (communication + compute - overlap) / min(communication, compute)),
                                ("bound_us", bound), ("overlap_over_bound", overlap / bound),
                                ("communication_gbps", row["bytes"] / communication / 1000)):
                self.assertAlmostEqual(row[name] / value, 1, places=9, msg=name)
            self.assertGreaterEqual(compute, 500)  # Of 1 ms of processor time.
            self.assertGreaterEqual(row["no_overlap_us"]["min"], 500)

    def test_rounds_go_on_for_the_time_that_was_asked_for(self):
        run = self.record("-n", 2, "--backend", "local", "--model", "uniform:1x64", "--bucket", "1M", "--compute", "1ms",
                          "--min-time", "100ms")
        row = run["results"][0]
        self.assertGreaterEqual(row["communication_us"]["n"], 5)
        self.assertGreaterEqual(row["overlap_us"]["n"] * sum(row[name]["max"] for name in TIMES[:4]), 100e3)

    def test_the_json_follows_the_schema(self):
        runs = [self.record("-n", 2, *small(), "--calls"),
                self.record("-n", 1, *small(compute="0s", check="none"))]
        self.check_schema("step", runs, ({"schema_version": 2}, {"status": "fine"}, {"surprise": 1}),
                          ({"wrong": -1}, {"buckets": "many"}, {"compute_us": {"n": 1}}))

    def test_the_tables_fit_and_say_what_was_measured(self):
        text = self.steps("-n", 3, "--backend", "local", *small())
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
            self.assertEqual(line, line.rstrip())
        self.assertRegex(text, r"^tutti bench step \S+  3 ranks / 1 host  local\n")
        self.assertIn("\n  uniform:9x10000e  9 gradients  351.6 KiB of f32\n  hook all_reduce, 1 ms of compute a step\n", text)
        for bucket in ("64 KiB", "100 KiB"):
            self.assertRegex(text, rf"\n +{bucket} +\d( +[\d.]+){{2}} +\d+%( +[\d.]+){{3}} +-?\d+% +ok\n")
        self.assertRegex(text, r"\n  medians of at least 2 rounds +[\d.]+ s\n$")
        heading = self.steps("-n", 1, *small(compute="0s"), "--calls").split("\n\n", 1)[1]
        for word in ("compute", "overlap", "serial", "hidden"):
            self.assertNotIn(word, heading)
        self.assertRegex(heading, r"comm +comm +calls\n +bucket +buckets +ms +GB/s +cpu +ms +check\n")

    def test_every_format_has_the_numbers_of_the_json(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {ending: pathlib.Path(folder, f"r.{ending}") for ending in ("json", "ndjson", "csv", "md")}
            self.steps("-n", 2, *small(), *[argument for file in files.values() for argument in ("--out", file)])
            texts = {ending: file.read_text() for ending, file in files.items()}
        run = json.loads(texts["json"])
        lines = [json.loads(line) for line in texts["ndjson"].splitlines()]
        rows = list(csv.DictReader(io.StringIO(texts["csv"]), strict=True))
        self.assertEqual([len(lines), len(rows)], 2 * [len(run["results"])])
        for result, line, row in zip(run["results"], lines, rows):
            self.assertEqual((line["bucket_bytes"], line["overlap_us.p50"]), (result["bucket_bytes"], result["overlap_us"]["p50"]))
            self.assertEqual((line["config.model"], line["world.size"]), ("uniform:9x10000e", 2))
            self.assertEqual(list(row), list(line))
            self.assertEqual((float(row["hidden"]), row["calls_us.p50"]), (result["hidden"], ""))
        self.assertRegex(texts["md"], r"^# tutti bench step \S+: uniform:9x10000e  9 gradients ")
        self.assertEqual(texts["md"].count("\n| 64 KiB | "), 1)
        for form, start in (("ndjson", '{"started":'), ("csv", "started,status,"), ("md", "# tutti bench step ")):
            self.assertTrue(self.steps("-n", 1, *small(), "-f", form).startswith(start), form)

    def test_what_makes_no_sense_is_refused_by_name(self):
        two = ["step", "-n", "2"]
        for arguments, words in (
                (["step", "-n", "0"], ["-n '0'"]),
                (["step"], ["-n N"]),
                (["-n", "2", "step"], ["step", "bench"]),
                ([*two, "all_reduce"], ["all_reduce"]),
                ([*two, "--model", "resnet51"], ["'resnet51'", "resnet50", "uniform"]),
                ([*two, "--model", "uniform:16"], ["uniform:NxSIZE"]),
                ([*two, "--model", "uniform:2x1000000M"], ["uniform:2x1000000M", "free"]),
                ([*two, "--dtype", "i32"], ["'i32'", "bf16"]),
                ([*two, "--bucket", "0"], ["'0'"]),
                ([*two, "--bucket", "1Q"], ["'1Q'"]),
                ([*two, "--hook", "power_sgd"], ["'power_sgd'", "all_reduce"]),
                ([*two, "--compute", "fast"], ["--compute 'fast'"]),
                ([*two, "--rounds", "0"], ["--rounds '0'"]),
                ([*two, "--warmup", "-1"], ["--warmup"]),
                ([*two, "--min-time", "1"], ["--min-time '1'"]),
                ([*two, "--check", "some"], ["'some'", "first"]),
                ([*two, "--seed", "x"], ["--seed 'x'"]),
                ([*two, "--sizes", "1M"], ["--sizes"]),
                ([*two, "-f", "yaml"], ["'yaml'"]),
                ([*two, "--out", "r.html"], ["r.html"]),
                ([*two, "--backend", "gluu"], ["gluu"]),
                ([*two, "--device", "moon"], ["moon"]),
                ([*two, "--timeout", "0s"], ["--timeout"])):
            self.refuses(64, ["bench", *arguments], "error: ", *words)

    def test_a_missing_device_is_unavailable_or_skipped(self):
        if "nccl" in backends():
            self.skipTest("this machine may have a device")
        arguments = ["bench", "step", "-n", 2, "--backend", "nccl", *small()]
        self.assertEqual(tutti(*arguments).returncode, 69)
        self.assertEqual(tutti(*arguments, "--skip-unavailable").returncode, 77)

    def test_help_names_the_options(self):
        text = self.steps("--help")
        for option in ("--model", "--bucket", "--hook", "--compute", "--calls", "--rounds", "--device"):
            self.assertIn(option, text)


class Processes(StepProgram):
    """Ranks of a launcher."""

    @classmethod
    def setUpClass(cls):
        if "gloo" not in backends():
            raise unittest.SkipTest("the backend gloo is not in this build")

    def test_a_launcher_s_ranks_measure_together_and_rank_0_prints(self):
        done = tutti("run", "-n", 3, "--", TUTTI, "bench", "step", *small(), "-f", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual({line[:4] for line in lines}, {"[0] "})
        run = json.loads("\n".join(line[4:] for line in lines))
        self.check(run, 3, TIMES[:4])
        self.assertEqual(len({rank["pid"] for rank in run["world"]["ranks"]}), 3)

    def test_ranks_that_were_told_different_things_end_together(self):
        done = tutti("run", "-n", 2, "--", "sh", "-c", f"exec '{TUTTI}' bench step --compute 0s --model uniform:1$RANK'x4K'")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertEqual(done.stderr.count("[0] error: rank 1 was started with other options than rank 0"), 1, done.stderr)
        self.assertEqual(done.stdout, "", done.stderr)


if __name__ == "__main__":
    main()
