#include "report/run_figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "common/statistics.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

Curve& curve_of(std::vector<Sweep>& sweeps, const std::string& title, const std::string& name) {
  const auto found = [](auto& list, const std::string& text, auto member) -> auto& {
    const auto place = std::ranges::find(list, text, member);
    if (place != list.end()) return *place;
    auto& added = list.emplace_back();
    added.*member = text;
    return added;
  };
  return found(found(sweeps, title, &Sweep::title).curves, name, &Curve::name);
}

double share_of_mean(const SavedRow& row, double us) {
  const std::vector<double>& ranks = row.rank_mean_us;
  const double mean = ranks.empty() ? row.time_us.mean
                                    : std::accumulate(ranks.begin(), ranks.end(), 0.0) /
                                          static_cast<double>(ranks.size());
  return mean / std::max(us, 1e-3);  // A clock has nanoseconds.
}

bool has_size(const SavedRow& row) {
  return !row.dtype.empty() && row.bytes > 0;
}

std::string times_text(const SavedRow& row) {
  return fmt::format("p50 {} µs, p99 {} µs", format_us(row.time_us.p50),
                     format_us(row.percentiles_us.at(99)));
}

/// Adds the line that is fitted to the times of the only curve.
void add_fit(Plot& time, const Curve& curve) {
  std::vector<Point> points;
  for (const SavedRow& row : curve.rows)
    points.push_back({static_cast<double>(row.bytes), row.time_us.p50});
  const std::optional<Fit> fit = fit_line(points);
  if (!fit) return;
  time.note =
      fmt::format("fit: t = {} µs + S / {:.3g} GB/s", format_us(fit->alpha_us), fit->beta_gbps);
  Line line{"fit", {}, 2 * line_colors - 1, true};  // Grey, with dashes.
  for (const Point& point : points)
    line.marks.push_back({point.bytes, fit->alpha_us + point.bytes / fit->beta_gbps / 1e3, {}, {}});
  time.lines.push_back(std::move(line));
}

}  // namespace

std::vector<std::string> names_of_runs(std::span<const SavedRun> runs) {
  const std::vector<std::function<std::string(const SavedRun&)>> kinds{
      [](const SavedRun& run) { return run.backend.name; },
      [](const SavedRun& run) {
        return fmt::format("{}, {}", run.backend.name, plural(run.world.size, "rank"));
      },
      [](const SavedRun& run) { return std::filesystem::path(run.file).stem().string(); },
      [](const SavedRun& run) { return run.file; }};
  std::vector<std::string> names;
  for (const auto& kind : kinds) {
    names.clear();
    for (const SavedRun& run : runs) names.push_back(kind(run));
    if (std::set(names.begin(), names.end()).size() == names.size()) return names;
  }
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = fmt::format("{}: {}", i + 1, names[i]);
  return names;
}

std::vector<Sweep> sweeps_of(std::span<const SavedRun> runs) {
  const std::vector<std::string> names = names_of_runs(runs);
  std::vector<Sweep> sweeps;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const SavedRow& row : runs[i].rows)
      (runs.size() == 1 ? curve_of(sweeps, row.coll, title(row))
                        : curve_of(sweeps, title(row), names[i]))
          .rows.push_back(row);
  for (Sweep& sweep : sweeps) {
    for (Curve& curve : sweep.curves) std::ranges::stable_sort(curve.rows, {}, &SavedRow::bytes);
    if (runs.size() > 1) continue;
    if (sweep.curves.size() == 1) {
      sweep.title = sweep.curves.front().name;
      sweep.curves.front().name = names.front();
    } else {
      for (Curve& curve : sweep.curves) curve.name.erase(0, sweep.title.size() + 1);
    }
  }
  return sweeps;
}

std::vector<Plot> size_plots(const Sweep& sweep) {
  Plot time{sweep.title, {"size", Scale::bytes}, {"time of a call", Scale::us}};
  Plot bandwidth{sweep.title, {"size", Scale::bytes}, {"bus bandwidth", Scale::gbps}};
  int style = 0;
  for (const Curve& curve : sweep.curves) {
    Line times{curve.name, {}, style};
    Line speeds{curve.name, {}, style++};
    for (const SavedRow& row : curve.rows) {
      const double p99 = row.percentiles_us.at(99);
      if (!has_size(row)) {
        time.note +=
            fmt::format("{}{}: {}", time.note.empty() ? "" : "; ", curve.name, times_text(row));
        continue;
      }
      const double bytes = static_cast<double>(row.bytes);
      const std::string tip =
          fmt::format("{}, {}: {}", curve.name, size_text(row), times_text(row));
      times.marks.push_back({bytes, row.time_us.p50, p99, tip});
      if (!row.busbw) continue;
      const double at_p50 = *row.busbw * share_of_mean(row, row.time_us.p50);
      const double at_p99 = *row.busbw * share_of_mean(row, p99);
      speeds.marks.push_back(
          {bytes, at_p50, at_p99,
           fmt::format("{}, {}: {} GB/s at p50, {} at p99", curve.name, size_text(row),
                       format_gbps(at_p50), format_gbps(at_p99))});
    }
    time.lines.push_back(std::move(times));
    bandwidth.lines.push_back(std::move(speeds));
  }
  if (sweep.curves.size() == 1) add_fit(time, sweep.curves.front());
  std::vector<Plot> plots{std::move(time)};
  const auto drawn = [](const Plot& plot) {
    return std::ranges::any_of(plot.lines, [](const Line& line) { return !line.marks.empty(); });
  };
  if (drawn(bandwidth))
    plots.push_back(std::move(bandwidth));
  else if (drawn(plots.front()))
    plots.front().note += fmt::format("{}no bus bandwidth: no byte crosses a link",
                                      plots.front().note.empty() ? "" : "; ");
  return plots;
}

std::optional<Plot> sample_plot(const Sweep& sweep) {
  constexpr std::size_t most_dots = 600;
  Plot plot{sweep.title + ", iterations",
            {"iteration", Scale::number, false},
            {"time of a call", Scale::us}};
  std::size_t most_joined = 1;
  int style = 0;
  for (const Curve& curve : sweep.curves) {
    const SavedRow* widest = nullptr;
    const auto spread = [](const SavedRow& row) {
      return row.percentiles_us.at(99) / row.time_us.p50;
    };
    for (const SavedRow& row : curve.rows)
      if (!row.samples_us.empty() && (widest == nullptr || spread(row) > spread(*widest)))
        widest = &row;
    Line dots{curve.name, {}, style++, false, false};
    if (widest == nullptr) continue;
    if (has_size(*widest)) dots.name += ", " + size_text(*widest);
    const std::vector<double>& samples = widest->samples_us;
    const std::size_t joined = (samples.size() + most_dots - 1) / most_dots;
    most_joined = std::max(most_joined, joined);
    for (std::size_t i = 0; i < samples.size(); i += joined) {
      const auto first = samples.begin() + static_cast<std::ptrdiff_t>(i);
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(joined, samples.size() - i));
      const auto slowest = std::max_element(first, last);
      const auto number = slowest - samples.begin() + 1;
      dots.marks.push_back({static_cast<double>(number),
                            *slowest,
                            {},
                            fmt::format("iteration {}: {} µs", number, format_us(*slowest))});
    }
    plot.lines.push_back(std::move(dots));
  }
  if (plot.lines.empty()) return std::nullopt;
  if (most_joined > 1)
    plot.note = fmt::format("a dot is the slowest of up to {} iterations", most_joined);
  return plot;
}

std::optional<HeatMap> rank_map(const Curve& curve) {
  constexpr std::size_t most_ranks = 32;
  const std::size_t ranks = curve.rows.front().rank_mean_us.size();
  if (ranks < 2) return std::nullopt;
  const auto excess = [](const SavedRow& row, std::size_t rank) {
    const double middle = median(row.rank_mean_us);
    return middle > 0 ? row.rank_mean_us[rank] / middle - 1 : 0;
  };
  std::vector<std::pair<double, std::size_t>> slowest;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double most = -1;
    for (const SavedRow& row : curve.rows) {
      if (row.rank_mean_us.size() != ranks) return std::nullopt;
      most = std::max(most, excess(row, rank));
    }
    slowest.emplace_back(-most, rank);
  }
  std::ranges::sort(slowest);
  slowest.resize(std::min(ranks, most_ranks));
  std::ranges::sort(slowest, {}, &std::pair<double, std::size_t>::second);

  HeatMap map{
      .title = curve.name + ": slowdown of ranks", .row_name = "rank", .column_name = "size"};
  map.note = "mean time of a rank beside the median rank's";
  if (ranks > most_ranks)
    map.note += fmt::format("; the {} slowest of {} ranks", most_ranks, ranks);
  for (const SavedRow& row : curve.rows) map.columns.push_back(size_text(row));
  for (const auto& [most, rank] : slowest) {
    map.rows.push_back(fmt::format("{}", rank));
    std::vector<HeatCell>& cells = map.cells.emplace_back();
    for (const SavedRow& row : curve.rows) {
      const double value = excess(row, rank);
      cells.push_back({std::abs(value) < 0.005 ? "0%" : fmt::format("{:+.0f}%", value * 100), value,
                       fmt::format("rank {}, {}: {} µs", rank, size_text(row),
                                   format_us(row.rank_mean_us[rank]))});
    }
  }
  return map;
}

std::string svg_of(std::span<const SavedRun> runs) {
  std::vector<Plot> plots;
  for (const Sweep& sweep : sweeps_of(runs))
    for (Plot& plot : size_plots(sweep)) plots.push_back(std::move(plot));
  const std::string what =
      runs.size() == 1 ? describe_world(runs.front()) : plural(std::ssize(runs), "run");
  if (plots.empty()) plots.push_back({.note = "no rows were measured"});
  return draw("tutti bench: " + what, plots).file();
}

}  // namespace tutti::tool
