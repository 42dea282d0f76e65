#include "report/svg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <regex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "report/figures.hpp"
#include "report/run_figures.hpp"

namespace tutti::tool {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The visible texts of the picture, without tooltips.
std::vector<std::string> texts(const std::string& picture) {
  static const std::regex element("<text[^>]*>([^<]*)");
  std::vector<std::string> found;
  for (std::sregex_iterator match(picture.begin(), picture.end(), element), end; match != end;
       ++match)
    found.push_back((*match)[1]);
  return found;
}

bool has(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

TEST(Svg, EscapesMarkupAndReplacesWhatXmlCannotHold) {
  EXPECT_EQ(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
  EXPECT_EQ(escaped("µs 😀 \t"), "µs 😀 \t");
  EXPECT_EQ(escaped(std::string("a\0b\x1b", 4)), "a\uFFFDb\uFFFD");
  EXPECT_EQ(escaped("\xff\xc3("), "\uFFFD\uFFFD(");  // Bytes that are not UTF-8.
  EXPECT_EQ(escaped("\xed\xa0\x80|\xef\xbf\xbf"), "\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD");
}

TEST(Svg, TextsEndAtTheEdgeWithTheWholeAsTooltip) {
  for (const Anchor anchor : {Anchor::start, Anchor::middle, Anchor::end}) {
    Svg svg(100, 20, "title");
    const std::string long_text(60, 'm');
    svg.text({50, 10}, long_text, anchor);
    const std::string picture = svg.element();
    const std::string shown = texts(picture).at(0);
    EXPECT_TRUE(shown.ends_with("m…")) << shown;
    EXPECT_LE(text_width(shown), anchor == Anchor::middle ? 100 : 50);
    EXPECT_EQ(count(picture, "<title>" + long_text + "</title>"), 1U);
  }
  Svg svg(100, 20, "title");
  svg.text({10, 10}, "short");
  EXPECT_EQ(texts(svg.element()), std::vector<std::string>{"short"});
}

TEST(Svg, AFileHasItsStyleAndAnElementOfAPageHasNot) {
  const Svg svg(10, 10, "a & b");
  EXPECT_NE(svg.file().find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(svg.element().find("<style"), std::string::npos);
  EXPECT_NE(svg.element().find("<title>a &amp; b</title>"), std::string::npos);
}

Plot plot_of(Line line) {
  return {"plot", {"size", Scale::bytes}, {"time", Scale::us}, {std::move(line)}};
}

TEST(Figures, TicksHaveUnitsAndEncloseTheValues) {
  const std::vector<std::string> shown =
      texts(draw("", {plot_of({"line", {{8, 30}, {1 << 20, 7000}}})}).element());
  for (const char* tick : {"8 B", "10 µs", "100 µs", "1 ms", "10 ms"})
    EXPECT_TRUE(has(shown, tick)) << tick;
  EXPECT_FALSE(has(shown, "1 µs"));
  EXPECT_FALSE(has(shown, "100 ms"));
  EXPECT_FALSE(has(shown, "20 µs"));
  Plot near = plot_of({"line", {{8, 0.03}, {16, 3}}});
  for (const char* tick : {"0.02 µs", "0.05 µs", "0.1 µs", "2 µs", "5 µs"})
    EXPECT_TRUE(has(texts(draw("", {near}).element()), tick)) << tick;
  near.y = {"share", Scale::number, false};
  EXPECT_TRUE(has(texts(draw("", {near}).element()), "0"));
}

TEST(Figures, RatesHaveDecimalUnits) {
  Plot plot = plot_of({"line", {{8, 0.002}, {16, 30}}});
  plot.y.scale = Scale::gbps;
  const std::vector<std::string> shown = texts(draw("", {plot}).element());
  for (const char* tick : {"1 MB/s", "100 MB/s", "1 GB/s", "100 GB/s"})
    EXPECT_TRUE(has(shown, tick)) << tick;
}

TEST(Figures, MarksThatALogarithmCannotHaveAreLeftOut) {
  const std::string picture =
      draw("", {plot_of({"line", {{0, 1}, {8, 0}, {16, 2}, {32, 3}}})}).element();
  EXPECT_EQ(count(picture, "<circle"), 3U);  // Two marks, and one beside the name.
  EXPECT_EQ(picture.find("nan"), std::string::npos);
  EXPECT_EQ(picture.find("inf"), std::string::npos);
  const std::string empty = draw("", {plot_of({"line", {{0, 0}}})}).element();
  EXPECT_EQ(texts(empty), std::vector<std::string>{"plot"});
}

TEST(Figures, ASingleMarkHasItsBandToo) {
  const std::string picture = draw("", {plot_of({"line", {{8, 1, 5.0, "tip"}}})}).element();
  EXPECT_EQ(count(picture, "class=\"band"), 1U);
  EXPECT_EQ(count(picture, "<title>tip</title>"), 1U);
  EXPECT_EQ(count(draw("", {plot_of({"line", {{8, 1}}})}).element(), "class=\"band"), 0U);
}

TEST(Figures, NamesOfManyLinesDoNotOverlap) {
  Plot plot = plot_of({});
  for (int i = 0; i < 30; ++i)
    plot.lines.push_back({"line " + std::to_string(i), {{8, 1}, {16, 2 + 0.001 * i}}, i});
  const std::string picture = draw("", {plot}).element();
  static const std::regex name("y=\"([0-9.]+)\"[^>]*>line [0-9]+<");
  std::vector<double> places;
  for (std::sregex_iterator match(picture.begin(), picture.end(), name), end; match != end; ++match)
    places.push_back(std::stod((*match)[1]));
  ASSERT_EQ(places.size(), 30U);
  for (std::size_t i = 1; i < places.size(); ++i) EXPECT_GE(places[i] - places[i - 1], 15.9);
}

TEST(Figures, NamesOfSingleDotsStandBesideThemWithoutOverlaps) {
  Plot plot = plot_of({});
  for (const char* name : {"first", "second", "third"})
    plot.lines.push_back({name, {{8, 5}}, 0, false, false});
  plot.lines.push_back({"right", {{1024, 5}}, 0, false, false});
  const std::string picture = draw("", {plot}).element();
  EXPECT_EQ(count(picture, "<circle"), 4U);  // None beside a name.
  const auto place = [&](const std::string& name) {
    const std::regex text("x=\"([0-9.]+)\" y=\"([0-9.]+)\" text-anchor=\"(\\w+)\"[^>]*>" + name);
    std::smatch found;
    EXPECT_TRUE(std::regex_search(picture, found, text)) << name;
    return std::tuple(std::stod(found[1]), std::stod(found[2]), found[3].str());
  };
  const auto [x, first, anchor] = place("first");
  EXPECT_EQ(place("second"), std::tuple(x, first - 16, anchor));
  EXPECT_EQ(place("third"), std::tuple(x, first - 32, anchor));
  EXPECT_EQ(std::get<1>(place("right")), first);
}

TEST(Figures, AHeatMapWithManyColumnsHasNoTextsInItsCells) {
  HeatMap map{.title = "map", .row_name = "from", .column_name = "to"};
  for (int i = 0; i < 40; ++i) {
    map.rows.push_back(std::to_string(i));
    map.columns.push_back(std::to_string(i));
    map.cells.emplace_back(40, HeatCell{"cell", 0.5, "tip"});
  }
  const std::string large = draw(map).element();
  EXPECT_EQ(count(large, "<rect class=\"cell"), 1600U);
  EXPECT_FALSE(has(texts(large), "cell"));
  map.columns.resize(2);
  map.rows.resize(1);
  map.cells = {{{"a", 0}, {"b", 2}}};
  const std::string small = draw(map).element();
  EXPECT_TRUE(has(texts(small), "a"));
  EXPECT_EQ(count(small, "fill-opacity=\"0.70\""), 1U);  // The strength ends at 1.
}

SavedRun run_of(const std::string& backend, const std::string& file) {
  SavedRun run;
  run.backend.name = backend;
  run.file = file;
  for (const std::int64_t bytes : {64, 8}) {
    SavedRow row{.coll = "all_reduce", .dtype = "f32", .op = "sum", .place = "out", .bytes = bytes};
    row.time_us = {.n = 10, .p50 = 2, .mean = 4};
    row.percentiles_us = {{50, 2}, {90, 5}, {99, 8}};
    row.rank_mean_us = {3, 5};
    row.busbw = 1;
    run.rows.push_back(row);
  }
  return run;
}

TEST(RunFigures, RunsAreNamedByWhatDiffers) {
  EXPECT_EQ(names_of_runs(std::array{run_of("shm", "x.json"), run_of("gloo", "x.json")}),
            (std::vector<std::string>{"shm", "gloo"}));
  EXPECT_EQ(names_of_runs(std::array{run_of("shm", "a/old.json"), run_of("shm", "b/new.json")}),
            (std::vector<std::string>{"old", "new"}));
  EXPECT_EQ(names_of_runs(std::array{run_of("shm", "x.json"), run_of("shm", "x.json")}),
            (std::vector<std::string>{"1: x.json", "2: x.json"}));
}

TEST(RunFigures, RunsAreLinesOfOneSweepAndCallsOfOneRunAreToo) {
  const std::array runs{run_of("shm", "a.json"), run_of("gloo", "b.json")};
  const std::vector<Sweep> sweeps = sweeps_of(runs);
  ASSERT_EQ(sweeps.size(), 1U);
  EXPECT_EQ(sweeps[0].title, "all_reduce f32 sum");
  ASSERT_EQ(sweeps[0].curves.size(), 2U);
  EXPECT_EQ(sweeps[0].curves[1].name, "gloo");
  EXPECT_EQ(sweeps[0].curves[0].rows[0].bytes, 8);

  SavedRun both = run_of("shm", "");
  both.rows[0].dtype = "bf16";
  const std::vector<Sweep> calls = sweeps_of(std::span(&both, 1));
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].title, "all_reduce");
  EXPECT_EQ(calls[0].curves[0].name, "bf16 sum");
}

TEST(RunFigures, BandwidthIsThatOfTheMedianAndItsBandThatOfP99) {
  const SavedRun run = run_of("shm", "");
  const std::vector<Plot> plots = size_plots(sweeps_of(std::span(&run, 1))[0]);
  ASSERT_EQ(plots.size(), 2U);
  const Mark& time = plots[0].lines[0].marks[0];
  EXPECT_EQ(time.y, 2);
  EXPECT_EQ(time.to, 8);
  const Mark& rate = plots[1].lines[0].marks[0];  // 1 GB/s at the mean of the ranks' 3 and 5 µs.
  EXPECT_DOUBLE_EQ(rate.y, 2);
  EXPECT_DOUBLE_EQ(rate.to.value(), 0.5);
}

TEST(RunFigures, WithoutBusBandwidthOrSizeThereIsANote) {
  SavedRun run = run_of("shm", "");
  for (SavedRow& row : run.rows) row.busbw.reset();
  const std::vector<Plot> alone = size_plots(sweeps_of(std::span(&run, 1))[0]);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone[0].note, "no bus bandwidth: no byte crosses a link");
  run.rows.resize(1);
  run.rows[0].coll = "barrier";
  run.rows[0].dtype = "";
  const std::vector<Plot> barrier = size_plots(sweeps_of(std::span(&run, 1))[0]);
  ASSERT_EQ(barrier.size(), 1U);
  EXPECT_EQ(barrier[0].note, "shm: p50 2.000 µs, p99 8.000 µs");
}

TEST(RunFigures, ARankMapShowsTheSlowestRanks) {
  SavedRun run = run_of("shm", "");
  EXPECT_EQ(rank_map(sweeps_of(std::span(&run, 1))[0].curves[0]).value().cells[1][0].text, "+25%");
  for (SavedRow& row : run.rows) {
    row.rank_mean_us.assign(100, 10);
    row.rank_mean_us[77] = 15;
  }
  const HeatMap map = rank_map(sweeps_of(std::span(&run, 1))[0].curves[0]).value();
  EXPECT_EQ(map.rows.size(), 32U);
  ASSERT_TRUE(has(map.rows, "77"));
  EXPECT_EQ(map.cells.back()[0].text, "+50%");
  for (SavedRow& row : run.rows) row.rank_mean_us = {1};
  EXPECT_FALSE(rank_map(sweeps_of(std::span(&run, 1))[0].curves[0]));
}

TEST(RunFigures, IterationsAreThinnedToTheirSlowest) {
  SavedRun run = run_of("shm", "");
  EXPECT_FALSE(sample_plot(sweeps_of(std::span(&run, 1))[0]));
  run.rows[0].samples_us.assign(10'000, 5);
  run.rows[0].samples_us[7'777] = 900;
  const Plot plot = sample_plot(sweeps_of(std::span(&run, 1))[0]).value();
  EXPECT_LE(plot.lines[0].marks.size(), 600U);
  EXPECT_EQ(std::ranges::count(plot.lines[0].marks, 900, &Mark::y), 1);
  EXPECT_EQ(plot.lines[0].name, "shm, 64 B");
}

}  // namespace
}  // namespace tutti::tool
