"""`tutti loss` as a user types it: loss_test.py PATH_OF_TUTTI [unittest arguments]."""
import csv
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
except ImportError:
    jsonschema = None

TUTTI = ""
LAUNCHER_VARIABLES = re.compile(r"^(TUTTI_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|MASTER_|OMPI_|PMI_|PALS_|SLURM_)")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
LOSSES = ["smooth_ap", "recall_at_quantile", "p_auc_at_budget", "cross_entropy", "sigmoid_focal", "softmax_focal"]
RANKING = LOSSES[:3]
SMALL = ["--rows", "200", "--pos-rate", "0.3", "--rounds", "2"]


def tutti(*arguments, **variables):
    return subprocess.run([TUTTI, *map(str, arguments)], env={**ENVIRONMENT, **variables}, text=True, capture_output=True,
                          timeout=120)


def backends():
    """The backends of this build that serve ranks on host memory."""
    found = json.loads(tutti("info", "-f", "json").stdout)["backends"]
    return [backend["name"] for backend in found if backend["available"] and "cpu" in backend["serves"]]


class Program(unittest.TestCase):
    def runs(self, *arguments):
        done = tutti("loss", *arguments)
        self.assertEqual(done.returncode, 0, f"{' '.join(map(str, arguments))}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def record(self, *arguments):
        return json.loads(self.runs(*arguments, "-f", "json"))

    def refuses(self, arguments, *words):
        """Exits with 64 and one line on stderr that has all of `words`; nothing on stdout."""
        done = tutti("loss", *arguments)
        with self.subTest(arguments=arguments):
            self.assertEqual((done.returncode, done.stdout), (64, ""), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for word in ("error: ", *words):
                self.assertIn(word, done.stderr)

    def check(self, run, ranks, losses):
        """Every loss has numbers, equal to those of one process."""
        self.assertEqual(run["status"], "ok")
        self.assertEqual(run["world"]["size"], ranks)
        self.assertEqual([row["loss"] for row in run["results"]], losses)
        self.assertEqual(sum(run["config"]["layout"]), run["config"]["rows"])
        for row in run["results"]:
            self.assertEqual((row["wrong"], row["worst"]), (0, None), row)
            self.assertLessEqual(row["difference"]["loss"], run["config"]["tolerance"])
            self.assertLessEqual(row["difference"]["gradient"], run["config"]["tolerance"])
            self.assertGreater(row["value"], 0)
            self.assertGreater(row["gradient_norm"], 0)
            for time in (row["time_us"], row["time_us_one_process"]):
                self.assertEqual(time["n"], run["config"]["rounds"])
                self.assertGreater(time["min"], 0)
                self.assertLessEqual(time["min"], time["p50"])
                self.assertLessEqual(time["p50"], time["max"])
            self.assertEqual(len(row["evaluations"]), ranks)
            if row["loss"] in RANKING:
                self.assertGreater(sum(row["evaluations"]), 0)
                self.assertGreater(row["evaluations_one_process"], 0)
                self.assertEqual(row["valid_classes"], run["config"]["classes"])
            else:
                self.assertIsNone(row["valid_classes"])
                self.assertIsNone(row["temperature"])


class Loss(Program):
    def test_every_loss_is_that_of_one_process_on_every_backend_and_any_number_of_ranks(self):
        for backend in backends():
            for ranks in (1, 2, 3):
                for dtype in ("f32", "f64"):
                    with self.subTest(backend=backend, ranks=ranks, dtype=dtype):
                        run = self.record("-n", ranks, "-b", backend, "--classes", 3, "-d", dtype, *SMALL)
                        self.check(run, ranks, LOSSES)
                        self.assertEqual(run["backend"]["name"], backend)
                        self.assertIs(run["world"]["threads"], True)
                        self.assertEqual(run["config"]["tolerance"], 1e-12 if dtype == "f64" else 1e-5)

    def test_every_split_has_the_same_numbers(self):
        values = {}
        for split, layout in (("even", [66, 67, 67]), ("uneven", [50, 0, 150]), ("one", [0, 0, 200])):
            run = self.record("-n", 3, "-d", "f64", "--split", split, *SMALL)
            self.check(run, 3, LOSSES[:-1])
            self.assertEqual((run["config"]["split"], run["config"]["layout"]), (split, layout))
            values[split] = [row["value"] for row in run["results"]]
        for split in ("uneven", "one"):
            for one, other in zip(values["even"], values[split]):
                self.assertTrue(math.isclose(one, other, rel_tol=1e-12), values)

    def test_a_queue_fills_over_several_calls_and_changes_the_loss(self):
        losses = ",".join(RANKING)
        without = self.record("-n", 3, "-l", losses, "-d", "f64", *SMALL, "--calls", 5)
        run = self.record("-n", 3, "-l", losses, "-d", "f64", *SMALL, "--queue", 500, "--ignore-rate", 0.1)
        self.check(run, 3, RANKING)
        self.assertEqual((run["config"]["calls"], run["notes"]), (5, []))
        for row, plain in zip(run["results"], without["results"]):
            self.assertEqual((row["queued"], plain["queued"]), (500, 0))
            self.assertNotEqual(row["value"], plain["value"])
        short = self.record("-n", 2, "-l", "smooth_ap", *SMALL, "--queue", 5000, "--calls", 2)
        self.assertEqual(short["results"][0]["queued"], 400)
        self.assertEqual(short["notes"], ["smooth_ap: after 2 calls its queue has 400 of 5000 rows"])

    def test_a_tolerance_that_nothing_can_keep_ends_with_two(self):
        # A focal loss sums thousands of rows in another order, so with some seeds the last bits differ.
        for seed in range(20):
            done = tutti("loss", "-n", 3, "-l", "sigmoid_focal", "-d", "f64", "--rows", 5000, "--rounds", 1,
                         "--tolerance", 0, "--seed", seed, "-f", "json")
            run = json.loads(done.stdout)
            row = run["results"][0]
            if row["wrong"] != 0:
                break
        self.assertEqual((done.returncode, run["status"]), (2, "wrong_data"))
        self.assertLess(row["difference"]["loss"], 1e-12)
        self.assertRegex(done.stderr, r"^error: sigmoid_focal: \d+ numbers? differs? from those of one process, the largest difference: rank")
        table = tutti("loss", "-n", 3, "-l", "sigmoid_focal", "-d", "f64", "--rows", 5000, "--rounds", 1, "--tolerance", 0,
                      "--seed", seed)
        self.assertEqual(table.returncode, 2)
        self.assertRegex(table.stdout, r"\n  sigmoid_focal .* BAD\n")
        self.assertIn("0 of 1 within 0 of one process", table.stdout)

    def test_threads_change_no_number(self):
        arguments = ["-n", 2, "-l", "smooth_ap", "--rows", 20000, "-d", "f64", "--rounds", 1]
        one, two = (self.record(*arguments, "--threads", threads) for threads in (1, 2))
        self.check(two, 2, ["smooth_ap"])
        self.assertEqual(two["config"]["threads"], 2)
        self.assertEqual(one["results"][0]["value"], two["results"][0]["value"])

    def test_the_seed_alone_decides_the_numbers(self):
        def values(*arguments):
            return [row["value"] for row in self.record("-n", 2, *SMALL, *arguments)["results"]]
        first = values()
        self.assertEqual(first, values())
        self.assertNotEqual(first, values("--seed", 1))

    def test_only_losses_of_pairs_are_held_against_the_loop_of_pairs(self):
        run = self.record("-n", 2, *SMALL, "--surrogate", "pairwise", "--classes", 2, "--budget", 0.2)
        self.check(run, 2, LOSSES)
        for row in run["results"]:
            if row["loss"] in ("smooth_ap", "p_auc_at_budget"):
                self.assertIs(row["pair_loop"]["estimated"], False)
                self.assertAlmostEqual(row["pair_loop"]["speedup"],
                                       row["pair_loop"]["time_us"] / row["time_us_one_process"]["p50"])
            else:
                self.assertIsNone(row["pair_loop"])
        rows = {row["loss"]: row for row in self.record("-n", 1, *SMALL)["results"]}
        self.assertIsNone(rows["p_auc_at_budget"]["pair_loop"])

    def test_a_long_loop_of_pairs_is_estimated(self):
        arguments = ["-n", 1, "-l", "smooth_ap", "--rows", 60000, "--pos-rate", 0.5, "--rounds", 1]
        loop = self.record(*arguments)["results"][0]["pair_loop"]
        self.assertIs(loop["estimated"], True)
        self.assertGreater(loop["time_us"], 1e6)
        table = self.runs(*arguments)
        self.assertRegex(table, r"\n  smooth_ap .* ~\d+\n  ~  the loop of pairs was timed on a part of its anchors\n")

    def test_options_reach_the_losses(self):
        def values(**options):
            chosen = [text for name, value in {"quantile": 0.1, "budget": 0.2, **options}.items()
                      for text in ("--" + name.replace("_", "-"), value)]
            run = self.record("-n", 1, *SMALL, "--classes", 2, *chosen)
            return {row["loss"]: row for row in run["results"]}

        plain = values()
        self.assertEqual([plain[name]["temperature"] for name in RANKING], [0.01, 0.01, 0.1])
        self.assertEqual([values(temperature=0.5)[name]["temperature"] for name in RANKING], [0.5] * 3)
        for option, changed in (({"temperature": 0.5}, RANKING), ({"gamma": 0.5}, LOSSES[4:]),
                                ({"quantile": 0.3}, ["recall_at_quantile"]), ({"budget": 0.3}, ["p_auc_at_budget"]),
                                ({"surrogate": "pairwise"}, ["p_auc_at_budget"]), ({"ignore_rate": 0.5}, LOSSES)):
            others = values(**option)
            self.assertEqual([name for name in LOSSES if others[name]["value"] != plain[name]["value"]], changed, option)

    def test_the_json_follows_the_schema(self):
        schema = json.loads(tutti("schema", "loss").stdout)
        self.assertEqual(schema["$id"], "tutti/loss-run-1")
        self.assertEqual(json.loads(tutti("schema").stdout)["$id"], "tutti/bench-run-1")
        self.assertEqual(tutti("schema", "bench").stdout, tutti("schema").stdout)
        self.assertEqual(tutti("schema", "losses").returncode, 64)
        runs = [self.record("-n", 2, *SMALL, "--classes", 3, "--queue", 100, "--surrogate", "pairwise"),
                self.record("-n", 1, *SMALL),
                json.loads(tutti("loss", "-n", 2, "-l", "smooth_ap", "--rows", 1, "-f", "json").stdout)]
        if jsonschema is None:
            self.skipTest("the Python module jsonschema is not here: the output was not validated")
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        for run in runs:
            validator.validate(run)
        for change in ({"schema_version": 2}, {"status": "fine"}, {"surprise": 1}, {"fit": []}):
            self.assertFalse(validator.is_valid({**runs[0], **change}), change)
        for change in ({"loss": "hinge"}, {"wrong": -1}, {"worst": {"rank": 0}}, {"evaluations": 3}):
            self.assertFalse(validator.is_valid({**runs[0], "results": [{**runs[0]["results"][0], **change}]}), change)
        del runs[0]["results"][0]["wrong"]
        self.assertFalse(validator.is_valid(runs[0]))

    def test_the_table_fits_and_says_what_was_done(self):
        text = self.runs("-n", 3, "--classes", 2, *SMALL, "--queue", 300)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
            self.assertEqual(line, line.rstrip())
        self.assertRegex(text, r"^tutti loss \S+  200 rows  2 classes  f32  3 ranks / 1 host  local\n")
        self.assertIn("\n  rows of the ranks: uneven {50, 0, 150}\n", text)
        self.assertRegex(text, r"\n  loss +value +\|gradient\| +loss differs +grad differs +check\n")
        for loss in LOSSES:
            self.assertRegex(text, rf"\n  {loss} +[\d.]+ +[\d.]+ +\S+ +\S+ +ok\n")
            self.assertRegex(text, rf"\n  {loss}( +[\d.e+-]+){{3}}( +([\d.]+ [KM]?i?B|-)){{2}} +([~\d.]+|-)\n")
        self.assertRegex(text, r"\n  all within 1e-05 of one process +[\d.]+ s\n$")

    def test_every_format_has_the_numbers_of_the_json(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {ending: pathlib.Path(folder, f"r.{ending}") for ending in ("json", "ndjson", "csv", "md")}
            self.runs("-n", 2, *SMALL, "--surrogate", "pairwise",
                      *[argument for file in files.values() for argument in ("--out", file)])
            texts = {ending: file.read_text() for ending, file in files.items()}
        run = json.loads(texts["json"])
        lines = [json.loads(line) for line in texts["ndjson"].splitlines()]
        rows = list(csv.DictReader(io.StringIO(texts["csv"]), strict=True))
        self.assertEqual([len(lines), len(rows)], 2 * [len(run["results"])])
        for result, line, row in zip(run["results"], lines, rows):
            self.assertEqual((line["loss"], line["value"]), (result["loss"], result["value"]))
            self.assertEqual((line["config.rows"], line["world.size"]), (200, 2))
            self.assertEqual(line["difference.gradient"], result["difference"]["gradient"])
            self.assertEqual(line["pair_loop.estimated"], (result["pair_loop"] or {}).get("estimated"))
            self.assertEqual(list(row), list(line))
            self.assertEqual((row["loss"], float(row["time_us.p50"])), (result["loss"], result["time_us"]["p50"]))
            self.assertEqual(row["evaluations"], " ".join(map(str, result["evaluations"])))
            self.assertRegex(texts["md"], rf"\n\| {result['loss']} \| [\d.]+ \|.*\| ok \|")
        self.assertRegex(texts["md"], r"^# tutti loss \S+: 200 rows  1 class  f32: 2 ranks / 1 host  local\n")
        self.assertIn("\n| loss | value | gradient norm | loss differs | grad differs | check | ms 1 process | ms 2 ranks |",
                      texts["md"])
        for form, start in (("ndjson", '{"started":'), ("csv", "started,status,"), ("md", "# tutti loss ")):
            self.assertTrue(self.runs("-n", 1, "-l", "smooth_ap", *SMALL, "-f", form).startswith(start), form)

    def test_binary_targets_have_no_softmax(self):
        run = self.record("-n", 2, *SMALL)
        self.assertEqual(run["notes"], ["left out softmax_focal: it needs --classes 2 or more"])
        self.assertEqual(run["config"]["losses"], LOSSES[:-1])
        self.refuses(["-n", 2, "-l", "smooth_ap,softmax_focal"], "--classes 1", "softmax_focal")

    def test_a_loss_without_a_valid_class_is_a_note(self):
        run = self.record("-n", 2, "-l", "smooth_ap", "--rows", 1)
        self.assertEqual((run["results"][0]["valid_classes"], run["results"][0]["pair_loop"]), (0, None))
        self.assertEqual(run["notes"],
                         ["smooth_ap: no class is valid in the last call, so its loss and gradient are 0"])

    def test_what_makes_no_sense_is_refused_by_name(self):
        two = ["-n", "2"]
        for arguments, words in (
                (["-n", "0"], ["-n '0'"]),
                ([], ["-n N"]),
                ([*two, "-l", "smooth"], ["'smooth'", *LOSSES]),
                ([*two, "-l", "smooth_ap,,"], ["--losses"]),
                ([*two, "--rows", "0"], ["--rows '0'"]),
                ([*two, "--classes", "0"], ["--classes '0'"]),
                ([*two, "--pos-rate", "0"], ["--pos-rate '0'", "above 0"]),
                ([*two, "--pos-rate", "nan"], ["--pos-rate 'nan'"]),
                ([*two, "--ignore-rate", "1"], ["--ignore-rate '1'"]),
                ([*two, "--temperature", "0"], ["--temperature '0'"]),
                ([*two, "--temperature", "warm"], ["--temperature 'warm'"]),
                ([*two, "--quantile", "1"], ["--quantile '1'"]),
                ([*two, "--budget", "1.5"], ["--budget '1.5'"]),
                ([*two, "--surrogate", "square"], ["'square'", "pairwise"]),
                ([*two, "--gamma", "-1"], ["--gamma"]),
                ([*two, "--queue", "-1"], ["--queue"]),
                ([*two, "--threads", "0"], ["--threads '0'"]),
                ([*two, "-l", "cross_entropy", "--threads", "2"], ["--threads 2", "smooth_ap"]),
                ([*two, "--split", "fair"], ["'fair'", "uneven"]),
                ([*two, "--dtype", "f16"], ["'f16'", "f64"]),
                ([*two, "--calls", "0"], ["--calls '0'"]),
                ([*two, "--rounds", "0"], ["--rounds '0'"]),
                ([*two, "--tolerance", "x"], ["--tolerance 'x'"]),
                ([*two, "-f", "yaml"], ["'yaml'", "json"]),
                ([*two, "--out", "r.html"], ["r.html", ".csv"]),
                ([*two, "-b", "gluu"], ["gluu", "local"]),
                ([*two, "--timeout", "0s"], ["--timeout"]),
                ([*two, "--store", "memory://x"], ["--store memory://x"]),
                ([*two, "-l", "sigmoid_focal", "--queue", "5"], ["--queue 5", "ranking"]),
                ([*two, "-l", "sigmoid_focal", "--temperature", "1"], ["--temperature 1", "ranking"]),
                ([*two, "-l", "sigmoid_focal", "--ignore-rate", "0.1"], ["--ignore-rate 0.1", "sigmoid_focal"]),
                ([*two, "-l", "smooth_ap", "--gamma", "1"], ["--gamma 1", "focal"]),
                ([*two, "-l", "smooth_ap", "--quantile", "0.1"], ["--quantile 0.1", "recall_at_quantile"]),
                ([*two, "-l", "smooth_ap", "--budget", "0.1"], ["--budget 0.1", "p_auc_at_budget"]),
                ([*two, "-l", "smooth_ap", "--surrogate", "pairwise"], ["--surrogate pairwise", "p_auc_at_budget"]),
                ([*two, "--rows", "1000000000", "--classes", "100000"], ["--rows 1000000000", "free"]),
                ([*two, "--frobnicate"], ["--frobnicate"])):
            self.refuses(arguments, *words)

    def test_help_names_the_options(self):
        text = self.runs("--help")
        for option in ("--losses", "--rows", "--classes", "--pos-rate", "--temperature", "--queue", "--split", "--tolerance"):
            self.assertIn(option, text)


class Processes(Program):
    """Ranks of a launcher."""

    @classmethod
    def setUpClass(cls):
        if "gloo" not in backends():
            raise unittest.SkipTest("the backend gloo is not in this build")

    def test_a_launcher_s_ranks_compute_together_and_rank_0_prints(self):
        done = tutti("run", "-n", 3, "--", TUTTI, "loss", *SMALL, "--classes", 2, "--queue", 300, "-d", "f64", "-f", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual({line[:4] for line in lines}, {"[0] "})
        run = json.loads("\n".join(line[4:] for line in lines))
        self.check(run, 3, LOSSES)
        self.assertIs(run["world"]["threads"], False)
        self.assertEqual(len({rank["pid"] for rank in run["world"]["ranks"]}), 3)

    def test_ranks_that_were_told_different_things_end_together(self):
        done = tutti("run", "-n", 2, "--", "sh", "-c", f"exec '{TUTTI}' loss --rows 10$RANK")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertEqual(done.stderr.count("[0] error: rank 1 was started with other options than rank 0"), 1, done.stderr)
        self.assertEqual((done.stdout, done.stderr.count("[1] ")), ("", 0), done.stderr)


if __name__ == "__main__":
    TUTTI = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
