"""The plots of runs and their pictures: figures_test.py [unittest arguments]."""
import unittest
import xml.etree.ElementTree

from package import a_barrier, a_row, a_run

from tutti_report.drawing import description, draw, drawable, tick_text
from tutti_report.figures import link_maps, names_of_runs, plots_of, rank_map, sample_plot, size_plots, sweeps_of

EVIL = "<script>document.title='evil'</script><img src=http://example.com/x.png>\"'&$\u2028"


def two_rows(backend="shm", **changes):
    rows = [a_row(2, bytes=size) for size in (64, 8)]
    for row in rows:
        row["time_us"] |= {"mean": 4, "p99": 8}
    return a_run(*rows, backend=backend, **changes)


def curves(run):
    return next(iter(sweeps_of([run]).items()))


class Figures(unittest.TestCase):
    def test_runs_are_named_by_what_differs(self):
        def names(*runs):
            return names_of_runs([two_rows(backend, file=file) for backend, file in runs])

        self.assertEqual(names(("shm", "x.json"), ("gloo", "x.json")), ["shm", "gloo"])
        self.assertEqual(names(("shm", "a/old.json"), ("shm", "b/new.json")), ["old", "new"])
        self.assertEqual(names(("shm", "x.json"), ("shm", "x.json")), ["1: x.json", "2: x.json"])

    def test_runs_are_lines_of_one_sweep_and_calls_of_one_run_are_too(self):
        sweeps = sweeps_of([two_rows("shm"), two_rows("gloo")])
        self.assertEqual([(name, list(lines)) for name, lines in sweeps.items()], [("all_reduce f32 sum", ["shm", "gloo"])])
        self.assertEqual([row["bytes"] for row in sweeps["all_reduce f32 sum"]["gloo"]], [8, 64])
        both = two_rows()
        both["results"][0]["dtype"] = "bf16"
        self.assertEqual({name: list(lines) for name, lines in sweeps_of([both]).items()}, {"all_reduce": ["bf16 sum", "f32 sum"]})

    def test_bandwidth_is_that_of_the_median_and_its_band_that_of_p99(self):
        run = two_rows(fit=[{"coll": "all_reduce", "dtype": "f32", "op": "sum", "place": "out", "root": None, "layout": None,
                             "alpha_us": 1, "beta_GBps": 0.008}])
        time, speed = size_plots(*curves(run), run["fit"])
        self.assertEqual(time["lines"][0]["marks"][0], [8, 2, 8])
        self.assertEqual(speed["lines"][0]["marks"][0], [8, 2, 0.5])  # 1 GB/s at the mean of the ranks' 3 and 5 µs.
        self.assertEqual((time["note"], time["lines"][1]["marks"][0]), ("fit: t = 1.000 µs + S / 0.008 GB/s", [8, 2]))

    def test_without_bus_bandwidth_or_size_there_is_a_note(self):
        run = two_rows()
        for row in run["results"]:
            row["busbw"] = None
        self.assertEqual([plot["note"] for plot in size_plots(*curves(run))], ["no bus bandwidth: no byte crosses a link"])
        plot, = size_plots(*curves(a_run(a_barrier())))
        self.assertEqual(plot["note"], "gloo: p50 3.000 µs, p99 6.000 µs")

    def test_a_rank_map_shows_the_slowest_ranks(self):
        def shown(means):
            run = two_rows()
            for row in run["results"]:
                row["time_us_rank_mean"] = means
            return rank_map("shm", run["results"])

        self.assertEqual(shown([3, 5])["texts"][1][0], "+25%")
        many = shown([10] * 77 + [15] + [10] * 22)
        self.assertEqual((len(many["rows"]), many["texts"][many["rows"].index(77)][0]), (32, "+50%"))
        self.assertIsNone(shown([1]))

    def test_iterations_are_thinned_to_their_slowest(self):
        run = two_rows()
        self.assertIsNone(sample_plot(*curves(run)))
        run["results"][0]["samples_us"] = [5] * 7777 + [900] + [5] * 2222
        line, = sample_plot(*curves(run))["lines"]
        self.assertLessEqual(len(line["marks"]), 600)
        self.assertEqual(([mark[1] for mark in line["marks"]].count(900), line["name"]), (1, "shm, 64 B"))

    def test_links_have_a_cell_each_in_both_maps_and_are_darker_the_slower(self):
        links = [{"from": a, "to": b, "latency_us": {"p50": 16 if {a, b} == {0, 1} else 1, "min": 1},
                  "message_us": {"p50": 1, "min": 1}, "bandwidth_gbps": 2} for a in range(4) for b in range(4) if a != b]
        run = two_rows(links=links)
        run["world"]["size"] = 4
        latency, bandwidth = link_maps(run)
        self.assertEqual(latency["texts"][0], ["", "16.00", "1.000", "1.000"])
        self.assertEqual(bandwidth["texts"][1], ["2.000", "", "2.000", "2.000"])
        self.assertEqual(latency["strengths"][0], [0, 1, 0, 0])
        self.assertEqual(list(link_maps(two_rows())), [])

    def test_ticks_have_units(self):
        self.assertEqual([tick_text("us", us) for us in (0.02, 10, 1e3, 2e6)], ["0.02 µs", "10 µs", "1 ms", "2 s"])
        self.assertEqual([tick_text("gbps", gbps) for gbps in (1e-3, 0.1, 100)], ["1 MB/s", "100 MB/s", "100 GB/s"])
        self.assertEqual([tick_text("bytes", 65536), tick_text("number", 0.5)], ["64 KiB", "0.5"])

    def test_marks_that_a_logarithm_cannot_have_are_left_out(self):
        plot = {"x": {"name": "size", "scale": "bytes"}, "y": {"name": "time", "scale": "us"},
                "lines": [{"name": "line", "marks": [[0, 1], [8, 0], [16, 2], [32, 3]]}, {"name": "empty", "marks": [[0, 0]]}]}
        self.assertEqual([line["marks"] for line in drawable(plot)], [[[16, 2], [32, 3]]])
        plot["y"]["log"] = False
        self.assertEqual(drawable(plot)[0]["marks"], [[8, 0], [16, 2], [32, 3]])


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """One run, no rows, and six runs: names that are no text but markup, many ranks, very different times."""
        six = [two_rows(name, env={"TUTTI_CHECK": "1", **({"NCCL_ALGO": EVIL} if name == EVIL else {})}, argv=[EVIL])
               for name in ("local", "shm", "gloo", EVIL, "x" * 90, "漢字" * 30)]
        for i, run in enumerate(six):
            run["config"]["min_time_s"] = i
            for row in run["results"]:
                row["time_us"] = {name: value * 10**(i - 3) for name, value in row["time_us"].items()}
                row["time_us_rank_mean"] = [1 + rank % 7 for rank in range(2 + 20 * i)]
        cls.all = {"one": [two_rows()], "none": [a_run(status="error", error=EVIL)], "six": six,
                   "barrier": [a_run(a_barrier())]}

    def check_svg(self, text):
        tags = {element.tag.partition("}")[2] for element in xml.etree.ElementTree.fromstring(text).iter()}
        self.assertFalse(tags & {"script", "foreignObject", "a"}, tags)
        self.assertNotRegex(text, r"@import|url\((?!#)|href=\"(?!#|data:image/png;)")

    def test_pictures_are_well_formed_load_nothing_and_say_what_they_show(self):
        for name, runs in self.all.items():
            with self.subTest(name):
                plots = plots_of(runs)
                text = draw(plots, "heading").decode()
                self.check_svg(text)
                self.assertEqual((description(text), draw(plots, "heading").decode()), (plots, text))
        self.assertIsNone(description("<svg/>"))

    def test_names_of_runs_are_texts_of_the_picture(self):
        text = draw(plots_of(self.all["six"])).decode()
        self.assertIn("&lt;script&gt;", text)
        self.assertNotIn("<script", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
