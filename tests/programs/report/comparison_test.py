"""The statistics, the comparison of runs and the rules about them: comparison_test.py [unittest arguments]."""
import itertools
import json
import math
import unittest

from package import a_barrier, a_row, a_run

import numpy as np

from tutti_report.comparison import compare, count, exit_code
from tutti_report.rules import check_rule
from tutti_report.runs import parse_run, row_size, title
from tutti_report.statistics import adjusted, interval, rank_sum_p, signed_rank_p
from tutti_report.texts import UsageError, gbps_text, size_text, us_text


def p_by_trying(ranks, total, choices):
    sums = [sum(rank for rank, chosen in zip(ranks, choice) if chosen) for choice in choices]
    return min(1, 2 * min(sum(s <= total for s in sums), sum(s >= total for s in sums)) / len(sums))


def mean_ranks(values):
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values]


class Statistics(unittest.TestCase):
    def test_p_values_of_few_values_are_those_of_all_choices_also_with_ties(self):
        random = np.random.default_rng(7)
        for _ in range(50):
            differences = [d for d in random.integers(-4, 5, random.integers(1, 10)).tolist() if d] or [1]
            ranks = [min(rank, max(1, 2 * len(differences) // 3 / 2)) for rank in mean_ranks([abs(d) for d in differences])]
            total = sum(rank for rank, d in zip(ranks, differences) if d > 0)
            choices = list(itertools.product((0, 1), repeat=len(ranks)))
            self.assertAlmostEqual(signed_rank_p(differences), p_by_trying(ranks, total, choices), 12)
            a, b = (random.integers(-4, 5, random.integers(1, 6)).tolist() for _ in range(2))
            ranks = mean_ranks(a + b)
            choices = [choice for choice in itertools.product((0, 1), repeat=len(ranks)) if sum(choice) == len(a)]
            self.assertAlmostEqual(rank_sum_p(a, b), p_by_trying(ranks, sum(ranks[:len(a)]), choices), 12)

    def test_a_few_disturbed_differences_do_not_hide_the_others(self):
        differences = [-100] * 3 + [1 + 0.01 * i for i in range(3, 20)]
        self.assertLess(signed_rank_p(differences), 0.01)  # Wilcoxon's is 0.076: the three have the largest ranks.

    def test_zeros_say_nothing(self):
        self.assertEqual(signed_rank_p([0, 1, 2, 0, 3]), signed_rank_p([1, 2, 3]))
        self.assertEqual(signed_rank_p([0] * 5), 1)

    def test_p_values_of_many_values_continue_those_of_few(self):
        for shift in (0, 5, 12):
            a, b = [2 * i for i in range(30)], [2 * i + 1 + shift for i in range(30)]
            self.assertAlmostEqual(rank_sum_p(a, b), rank_sum_p([*a, 30], b), delta=0.03)
        self.assertEqual(rank_sum_p([1] * 40, [1] * 40), 1)

    def test_equal_lists_are_rejected_as_often_as_the_level_says(self):
        random = np.random.default_rng(3)
        pairs = [random.normal(size=(2, 12)) for _ in range(2000)]
        # 100 expected at most; 140 is four standard deviations above. Exact levels of 12 are 4.2 and 4.5 %.
        for p_values in ([signed_rank_p(a) for a, _ in pairs], [rank_sum_p(a, b) for a, b in pairs]):
            self.assertTrue(40 < sum(p < 0.05 for p in p_values) < 140)

    def test_holm_multiplies_by_the_tests_that_are_left(self):
        np.testing.assert_allclose(adjusted([0.04, 0.01, 0.03, 0.9]), [0.09, 0.04, 0.09, 0.9])
        self.assertEqual(len(adjusted([])), 0)

    def test_the_bootstrap_interval_of_a_mean_has_its_standard_error(self):
        values = np.random.default_rng(5).normal(10, 1, 100)
        low, high = interval(lambda draws: draws.mean(axis=1), values)
        # 1.96 standard errors of 0.1; 2000 resamples know the ends to about 0.005.
        self.assertAlmostEqual(low, values.mean() - 0.196 * values.std(), delta=0.03)
        self.assertAlmostEqual(high, values.mean() + 0.196 * values.std(), delta=0.03)


class Machine:
    """A simulated machine that drifts: the speed is a random walk around a slow wave, one run in ten is disturbed, and each
    run has a speed of its own, as memory and CPUs differ between processes."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.walk, self.phase = 0, self.random.uniform(0, 6.28)

    def next(self, rows):
        self.walk += 0.02 * self.random.normal()
        self.phase += 0.1
        disturbed = 0.5 if self.random.uniform() < 0.1 else 0
        return 100 * np.exp(self.walk + 0.15 * math.sin(self.phase) + disturbed + 0.04 * self.random.normal(size=rows))

    def run(self, slowdown, rows):
        return runs_of([(slowdown * self.next(rows)).tolist()])[0]

    def samples(self, n):
        return self.next(1) * np.exp(0.01 * self.random.normal(size=n))


def runs_of(lists):
    """A run for each list of p50s, a row of another size for each."""
    return [a_run(*(a_row(p50, bytes=1024 << i) for i, p50 in enumerate(p50s))) for p50s in lists]


def rounds(seed, slowdown, number, rows):
    machine, coin, old_first = Machine(seed), np.random.default_rng(seed + 1), False
    old, new = [], []
    for i in range(number):
        old_first = bool(coin.integers(2)) if i % 2 == 0 else not old_first
        for is_old in (old_first, not old_first):
            (old if is_old else new).append(machine.run(1 if is_old else slowdown, rows))
    return compare(old, new, 0.05, True)


class Comparison(unittest.TestCase):
    def test_rounds_on_a_drifting_machine_find_a_slow_down_and_call_equal_programs_different_in_one_percent(self):
        sweeps, rows = 50, 4
        equal = [rounds(3 * i, 1, 40, rows) for i in range(sweeps)]
        self.assertLessEqual(sum(count(each, "slower") + count(each, "faster") > 0 for each in equal), 1)
        for i, factor, result in ((1, 1.1, "slower"), (2, 1 / 1.1, "faster")):
            found = sum(count(rounds(3 * seed + i, factor, 40, rows), result) for seed in range(sweeps))
            self.assertGreaterEqual(found, sweeps * rows * 0.96)

    def test_samples_of_two_runs_on_a_drifting_machine_would_nearly_always_differ(self):
        """The reason for rounds: they differ significantly, whatever is measured."""
        machines = map(Machine, range(50))
        self.assertGreaterEqual(sum(rank_sum_p(m.samples(200), m.samples(200)) < 0.01 for m in machines), 40)

    def test_a_change_needs_the_threshold_and_the_interval_and_p(self):
        base = [100, 100.5, 99.5, 100, 100.2, 99.8, 100, 100.5, 99.5, 100]
        for factor, noise, result in ((1, 0, "same"), (1.03, 0, "same"), (1.1, 0, "slower"), (0.9, 0, "faster"),
                                      (1, 0.3, "noisy"), (1.1, 0.3, "noisy")):
            other = [us * (factor + (noise if i % 2 == 0 else -noise)) for i, us in enumerate(reversed(base))]
            found = compare(runs_of([us] for us in base), runs_of([us] for us in other), 0.05, True)
            self.assertEqual(found["results"][0]["result"], result, (factor, noise))

    def test_the_ratio_is_that_of_medians(self):
        def compared(old, new, paired):
            return compare(runs_of([us] for us in old), runs_of([us] for us in new), 0.05, paired)

        lists, paired = compared((1, 2, 30), (4, 400, 3), False), compared((1, 2, 30), (4, 400, 90), True)
        self.assertEqual((lists["unit"], paired["unit"]), ("run", "round"))
        self.assertAlmostEqual(lists["results"][0]["ratio"], 2)
        self.assertAlmostEqual(paired["results"][0]["ratio"], 4)  # Of 4, 200 and 3.

    def test_few_runs_are_noisy_and_a_note_says_how_many_are_needed(self):
        base = [1, 1.01, 0.99, 1.02, 0.98]
        three, five = (compare(runs_of([us] for us in base[:n]), runs_of([2 * us] for us in base[:n]), 0.05) for n in (3, 5))
        self.assertEqual((three["results"][0]["result"], five["results"][0]["result"]), ("noisy", "slower"))
        self.assertIn("from 5 on", *three["notes"])
        self.assertEqual(five["notes"], [])

    def test_one_run_each_is_compared_by_blocks_and_a_note_says_what_is_missing(self):
        (before,), (after,) = runs_of([[100]]), runs_of([[120]])
        self.assertIsNone(compare([before], [after], 0.05)["results"][0]["interval"])
        before["results"][0]["block_p50_us"] = [100 + i % 3 for i in range(20)]
        after["results"][0]["samples_us"] = [120 + i % 3 for i in range(20)]  # Saved with --samples all.
        blocks = compare([before], [after], 0.05)
        self.assertEqual((blocks["unit"], blocks["results"][0]["result"], blocks["results"][0]["old_units"]), ("block", "slower", 20))
        self.assertIn("--run", blocks["notes"][0])

    def test_rows_match_by_everything_that_identifies_them(self):
        before = a_run(a_row())
        for change in ({"coll": "reduce"}, {"dtype": "f64"}, {"op": "max"}, {"place": "in"}, {"root": 1}, {"layout": "linear"},
                       {"counts": [1, 2]}, {"bytes": 2048}, {"ranks": 3}):
            found = compare([before], [a_run(a_row(**change))], 0.05)
            self.assertEqual((found["results"], len(found["only_new"]), exit_code(found)), ([], 1, 1), change)
            self.assertEqual(found["only_old"], ["all_reduce f32 sum 1 KiB, 2 ranks"])

    def test_backends_are_differences_unless_a_side_has_several(self):
        gloo, shm = a_run(a_row(100)), a_run(a_row(10), backend="shm")
        one = compare([gloo], [shm], 0.05)
        self.assertEqual((len(one["results"]), one["differences"]), (1, ["backend: gloo -> shm"]))
        self.assertEqual([row["backend"] for row in compare([gloo, shm], [gloo, shm], 0.05)["results"]], ["gloo", "shm"])

    def test_differences_of_settings_are_named(self):
        before, after = a_run(a_row()), a_run(a_row(), env={"NCCL_ALGO": "Ring"})
        after["backend"]["version"] = "2"
        before["world"]["oversubscribed"], after["world"]["oversubscribed"] = False, True
        self.assertEqual(compare([before], [after], 0.05)["differences"],
                         ["NCCL_ALGO: unset -> Ring", "backend.version: 1 -> 2", "oversubscribed: false -> true"])

    def test_the_exit_code_is_that_of_the_worst_row(self):
        def code(*results, strict=False, **lists):
            rows = [{"result": result} for result in results]
            return exit_code({"results": rows, "wrong": [], "only_old": [], **lists}, strict)

        self.assertEqual(code(), 1)  # Nothing was compared.
        self.assertEqual((code("same", "noisy"), code("same", "noisy", strict=True)), (0, 1))
        self.assertEqual(code("same", "faster", strict=True), 0)
        self.assertEqual((code("same", only_old=["a row"]), code("same", only_old=["a row"], strict=True)), (0, 1))
        self.assertEqual((code("same", "slower"), code("slower", wrong=["a row"])), (1, 2))


class Rules(unittest.TestCase):
    def runs(self):
        """all_reduce of 1 KiB, 8 KiB and 64 MiB, broadcast of 1 KiB, and barrier."""
        rows = [a_row(p50, coll=coll, bytes=size, busbw=busbw, layout="even") for coll, size, p50, busbw in (
            ("all_reduce", 1 << 10, 10, 0.1), ("all_reduce", 8 << 10, 20, 0.4), ("all_reduce", 64 << 20, 9000, 7),
            ("broadcast", 1 << 10, 5, 0.2))]
        return [a_run(*rows, a_barrier())]

    def test_a_rule_holds_for_all_rows_that_it_selects(self):
        for rule, holds, found in (
                ("all_reduce f32 >=64M : busbw >= 7", True, "1 row, worst 7 GB/s: all_reduce f32 sum 64 MiB, 2 ranks"),
                ("all_reduce f32 >=64M : busbw > 7GB/s", False, "1 of 1 row, worst 7 GB/s: all_reduce f32 sum 64 MiB, 2 ranks"),
                ("all_reduce <=8K : p99 <= 23us", True, "2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"),
                ("all_reduce <=8K\t:\tp99 <= 23 µs ", True, "2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"),
                ("all_reduce <=8K:p99<=22.9", False, "1 of 2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"),
                ("all_reduce : busbw >= 0.2 GB/s", False, "1 of 3 rows, worst 0.1 GB/s: all_reduce f32 sum 1 KiB, 2 ranks"),
                ("* : wrong == 0", True, "4 rows, worst 0: all_reduce f32 sum 1 KiB, 2 ranks"),
                ("* : p50 < 9ms", False, "1 of 5 rows, worst 9000 µs: all_reduce f32 sum 64 MiB, 2 ranks"),
                ("* : max <= 9.1ms", True, "5 rows, worst 9009 µs: all_reduce f32 sum 64 MiB, 2 ranks"),
                ("barrier : mean <= 4", True, "1 row, worst 4 µs: barrier -, 2 ranks"),
                ("gloo broadcast sum out even 1K : n == 100", True, "1 row, worst 100: broadcast f32 sum 1 KiB, 2 ranks"),
                (">1K <64M : min >= 19", True, "1 row, worst 19 µs: all_reduce f32 sum 8 KiB, 2 ranks"),
                ("* : p99.9 < 1s", False, "5 of 5 rows, worst no p99.9: all_reduce f32 sum 1 KiB, 2 ranks")):
            self.assertEqual(check_rule(rule, self.runs()), (holds, found), rule)

    def test_a_rule_that_selects_nothing_fails(self):
        for rule in ("all_gather : busbw > 0", "all_reduce f64 : wrong == 0", "2K : p50 < 1s", "barrier : wrong == 0",
                     "all_reduce broadcast : p50 < 1s", "shm : p50 < 1s"):
            self.assertEqual(check_rule(rule, self.runs()), (False, "no row matches"), rule)

    def test_a_row_without_the_metric_fails_and_is_the_worst(self):
        runs = self.runs()
        runs[0]["results"][1]["wrong"] = None
        self.assertEqual(check_rule("* : wrong == 0", runs),
                         (False, "1 of 4 rows, worst no wrong: all_reduce f32 sum 8 KiB, 2 ranks"))

    def test_a_rule_that_cannot_be_read_is_refused(self):
        for rule in ("", "all_reduce", "all_reduce busbw >= 1", ": busbw >= 1", "* : busbw", "* : busbw >=", "* : >= 1",
                     "* : speed > 1", "* : p0 > 1", "* : p101 > 1", "* : px > 1", "* : busbw => 1", "* : busbw >= fast",
                     "* : p50 <= 3 parsecs", "8:1K : p50 < 1", "4x : p50 < 1", ">= 64M : p50 < 1", "100e : p50 < 1"):
            with self.assertRaises(UsageError, msg=rule):
                check_rule(rule, self.runs())


class Runs(unittest.TestCase):
    def test_fields_of_later_releases_are_ignored_and_optional_ones_may_be_missing(self):
        run = a_run(a_row(), later=[1, 2])
        run["results"][0]["time_us"] |= {"p99.9": 4.5, "per_call": "x"}
        for name in ("block_p50_us", "root", "samples_us"):
            del run["results"][0][name]
        row = parse_run(json.dumps(run), "r.json")["results"][0]
        self.assertEqual((row["block_p50_us"], row["root"], row["time_us"]["p99.9"]), ([], None, 4.5))

    def test_a_malformed_file_is_refused_with_the_field_and_what_was_expected(self):
        gone = object()
        for path, value, *words in (
                (["schema_version"], 2, "schema_version: expected 1, found 2"), (["schema_version"], "1", "schema_version"),
                (["tool"], gone, "the whole: expected an object with the field 'tool'"),
                (["status"], "fine", "status: expected one of: ok wrong_data", 'found "fine"'),
                (["started"], "yesterday", "started: expected a date such as"),
                (["world", "ranks"], 3, "world.ranks: expected a list, found 3"),
                (["world", "ranks", 1, "host"], 3, "world.ranks[1].host: expected a string, found 3"),
                (["world", "threads"], 1, "world.threads: expected true or false"),
                (["env", "TUTTI_BACKEND"], 5, "env.TUTTI_BACKEND: expected a string"),
                (["results"], {}, "results: expected a list, found {}"), (["results", 0], 5, "results[0]: expected an object, found 5"),
                (["results", 0, "coll"], gone, "results[0]: expected an object with the field 'coll'"),
                (["results", 0, "bytes"], -8, "results[0].bytes: expected a whole number of at least 0", "found -8"),
                (["results", 0, "bytes"], 8.5, "results[0].bytes: expected a whole number"),
                (["results", 0, "bytes"], True, "results[0].bytes: expected a whole number"),
                (["results", 0, "time_us", "n"], 0, "results[0].time_us.n: expected a whole number of at least 1"),
                (["results", 0, "time_us", "p50"], gone, "results[0].time_us: expected", "'p50'"),
                (["results", 0, "time_us", "p99"], None, "results[0].time_us.p99: expected a number", "found null"),
                (["results", 0, "time_us", "p12"], "x", "results[0].time_us.p12: expected a number"),
                (["results", 0, "time_us", "mean"], -1, "results[0].time_us.mean: expected a number of at least 0"),
                (["results", 0, "time_us", "max"], math.inf, "results[0].time_us.max: expected a number"),
                (["results", 0, "samples_us"], [1, "x"], 'results[0].samples_us[1]: expected a number of at least 0, found "x"')):
            run = a_run(a_row())
            inner = run
            for step in path[:-1]:
                inner = inner[step]
            if value is gone:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            with self.assertRaises(UsageError) as caught:
                parse_run(json.dumps(run), "r.json")
            for word in ("r.json: ", *words):
                self.assertIn(word, str(caught.exception))

    def test_what_is_no_json_is_refused(self):
        for text in ("", "{", "[1]", '{"schema_version": 1e999}', "[" * 300_000 + "]" * 300_000):
            with self.assertRaises(UsageError):
                parse_run(text, "r.json")

    def test_rows_are_named_by_what_is_not_usual(self):
        row = a_run(a_row(coll="reduce", op="max", place="in", root=1, layout="linear"))["results"][0]
        self.assertEqual((title(row), row_size(row)), ("reduce f32 max in-place root 1 linear", "1 KiB"))
        row = a_run(a_row(root=0, layout="even", bytes=1536 << 10))["results"][0]
        self.assertEqual((title(row), row_size(row)), ("all_reduce f32 sum", "1.5 MiB"))
        barrier = a_run(a_barrier())["results"][0]
        self.assertEqual((title(barrier), row_size(barrier)), ("barrier", "-"))

    def test_numbers_are_written_as_bench_writes_them(self):
        self.assertEqual([us_text(us) for us in (0.4123, 41.2, 5710.12)], ["0.412", "41.20", "5710.1"])
        self.assertEqual([gbps_text(gbps) for gbps in (4.02e-4, 0.00123, 1.2345, 250.12, None)],
                         ["4.02e-4", "0.00123", "1.234", "250.1", "n/a"])
        self.assertEqual([size_text(size) for size in (0, 8, 1023, 1 << 20, 3 << 49)], ["0 B", "8 B", "1023 B", "1 MiB", "1.5 PiB"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
