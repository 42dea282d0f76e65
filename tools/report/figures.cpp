#include "report/figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr double plot_width = 600;
constexpr double edge = 12;
constexpr double inner_height = 230;
constexpr double left_margin = 84;
constexpr double top_margin = 44;
constexpr double bottom_margin = 42;
constexpr double swatch = 22;
constexpr double widest_name = 160;
constexpr double line_height = Svg::line_height;

/// "20 ms" of 20000 µs. The number before the unit is at least 1 where there is such a unit.
std::string with_unit(double value, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  for (; unit + 1 < units.size() && value > 999; ++unit) value /= 1e3;
  return fmt::format("{:.4g} {}", value, units[unit]);
}

std::string tick_text(Scale scale, double value) {
  static constexpr std::array<std::string_view, 3> times{"µs", "ms", "s"};
  static constexpr std::array<std::string_view, 5> rates{"B/s", "KB/s", "MB/s", "GB/s", "TB/s"};
  if (scale == Scale::bytes) return format_bytes(std::llround(value));
  if (scale == Scale::us) return with_unit(value, times);
  return scale == Scale::gbps ? with_unit(value * 1e9, rates) : fmt::format("{:g}", value);
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  bool empty() const { return least > most; }
};

/// Maps the values of an axis to pixels.
class Ruler {
 public:
  /// `from`, `to`: pixels of the ends. `distance`: pixels between ticks at least.
  Ruler(const Axis& axis, Range values, double from, double to, double distance)
      : axis_(axis), range_(values), from_(from), to_(to) {
    const double most_ticks = std::max(2.0, std::abs(to - from) / distance);
    if (!axis.log)
      linear(most_ticks);
    else if (axis.scale == Scale::bytes)
      powers_of_two(most_ticks);
    else
      decades(most_ticks);
  }

  double operator()(double value) const {
    const double share = axis_.log
                             ? std::log(value / range_.least) / std::log(range_.most / range_.least)
                             : (value - range_.least) / (range_.most - range_.least);
    return from_ + share * (to_ - from_);
  }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  /// The ends become ticks.
  void linear(double most_ticks) {
    if (range_.least > 0 && range_.least < range_.most / 2) range_.least = 0;
    if (range_.least == range_.most) range_.most += range_.most == 0 ? 1 : std::abs(range_.most);
    const double rough = (range_.most - range_.least) / most_ticks;
    double step = std::pow(10, std::floor(std::log10(rough)));
    for (const double factor : {2.0, 2.5, 2.0})
      if (step < rough) step *= factor;
    const double first = std::floor(range_.least / step);
    const double last = std::ceil(range_.most / step);
    for (double i = first; i <= last; ++i) ticks_.push_back(i * step);
    range_ = {ticks_.front(), ticks_.back()};
  }

  /// The ends stay; a single value becomes the middle.
  void powers_of_two(double most_ticks) {
    if (range_.least == range_.most) range_ = {range_.least / 2, range_.most * 2};
    const double first = std::ceil(std::log2(range_.least));
    const double last = std::floor(std::log2(range_.most));
    const double step = std::ceil((last - first + 1) / most_ticks);
    for (double i = first; i <= last; i += step) ticks_.push_back(std::exp2(i));
  }

  /// The ends become ticks: 1, 2, 5 times a power of ten where there is room.
  void decades(double most_ticks) {
    static constexpr std::array<double, 3> steps{1, 2, 5};
    const double range = std::log10(range_.most / range_.least);
    const bool fine = 3 * (range + 1) <= most_ticks;
    const auto tick = [fine](int i) {
      if (!fine) return std::pow(10, i);
      const int decade = i >= 0 ? i / 3 : -((2 - i) / 3);
      return steps[static_cast<std::size_t>(i - 3 * decade)] * std::pow(10, decade);
    };
    constexpr double slack = 1 + 1e-9;
    int i = static_cast<int>(std::floor(std::log10(range_.least))) * (fine ? 3 : 1);
    while (tick(i + 1) <= range_.least * slack) ++i;
    const int stride = fine ? 1 : static_cast<int>(std::ceil((range + 1) / most_ticks));
    ticks_ = {tick(i)};
    while (ticks_.size() < 2 || ticks_.back() * slack < range_.most)
      ticks_.push_back(tick(i += stride));
    range_ = {ticks_.front(), ticks_.back()};
  }

  Axis axis_;
  Range range_;
  double from_;
  double to_;
  std::vector<double> ticks_{};
};

bool has_place(const Axis& axis, double value) {
  return std::isfinite(value) && (!axis.log || value > 0);
}

/// The lines with the marks that have a place; none without marks.
std::vector<Line> drawn_lines(const Plot& plot) {
  std::vector<Line> lines;
  for (Line line : plot.lines) {
    std::erase_if(line.marks, [&](const Mark& mark) {
      return !has_place(plot.x, mark.x) || !has_place(plot.y, mark.y);
    });
    if (!line.marks.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

double height_of(const Plot& plot) {
  const std::size_t lines = drawn_lines(plot).size();
  const double note = plot.note.empty() ? 0 : line_height + 6;
  if (lines == 0) return 1.5 * line_height + note;
  return top_margin + std::max(inner_height, static_cast<double>(lines) * line_height) +
         bottom_margin + note;
}

/// Moves ascending places apart, within low and high.
void spread(std::vector<double>& places, double low, double high) {
  for (double& place : places) {
    place = std::max(place, low);
    low = place + line_height;
  }
  for (std::size_t i = places.size(); i-- > 0; high -= line_height)
    places[i] = std::min(places[i], high);
}

std::string style_of(const Line& line) {
  const int dashes = line.style / line_colors % 3;
  return fmt::format("c{}{}{}", line.style % line_colors,
                     dashes == 0 ? "" : fmt::format(" d{}", dashes), line.thin ? " thin" : "");
}

class PlotDrawing {
 public:
  /// `names`: width of the longest name.
  PlotDrawing(Svg& svg, const Plot& plot, double top, double names)
      : svg_(svg), plot_(plot), lines_(drawn_lines(plot)), top_(top), names_(names) {}

  void draw() {
    svg_.text({edge, top_ + line_height}, plot_.title, Anchor::start, "ink head");
    if (!lines_.empty()) draw_frame();
    if (!plot_.note.empty())
      svg_.text({edge, top_ + height_of(plot_) - 11}, plot_.note, Anchor::start, "quiet");
  }

 private:
  void draw_frame() {
    Range xs;
    Range ys;
    for (const Line& line : lines_) {
      for (const Mark& mark : line.marks) {
        xs.add(mark.x);
        ys.add(mark.y);
        if (mark.to && has_place(plot_.y, *mark.to)) ys.add(*mark.to);
      }
    }
    const double right = plot_width - std::min(names_, widest_name) - swatch - 24;
    const double top = top_ + top_margin;
    const double bottom =
        top + std::max(inner_height, static_cast<double>(lines_.size()) * line_height);
    const Ruler x(plot_.x, xs, left_margin, right, 72);
    const Ruler y(plot_.y, ys, bottom, top, 24);

    for (const double tick : y.ticks()) {
      svg_.path(std::array<Xy, 2>{{{left_margin, y(tick)}, {right, y(tick)}}}, "grid");
      svg_.text({left_margin - 8, y(tick) + 4}, tick_text(plot_.y.scale, tick), Anchor::end);
    }
    for (const double tick : x.ticks()) {
      svg_.path(std::array<Xy, 2>{{{x(tick), top}, {x(tick), bottom}}}, "grid");
      svg_.text({x(tick), bottom + line_height}, tick_text(plot_.x.scale, tick), Anchor::middle);
    }
    svg_.path(std::array<Xy, 3>{{{left_margin, top}, {left_margin, bottom}, {right, bottom}}},
              "axis");
    svg_.text({edge, top - 10}, plot_.y.name, Anchor::start, "quiet");
    svg_.text({(left_margin + right) / 2, bottom + 2 * line_height + 2}, plot_.x.name,
              Anchor::middle, "quiet");
    for (const Line& line : lines_) draw_band(line, x, y);
    for (const Line& line : lines_) draw_line(line, x, y);
    draw_names(right + 10, y, top, bottom);
  }

  void draw_band(const Line& line, const Ruler& x, const Ruler& y) {
    std::vector<Xy> border;
    for (const Mark& mark : line.marks) border.push_back({x(mark.x), y(mark.y)});
    bool there = false;
    for (auto mark = line.marks.rbegin(); mark != line.marks.rend(); ++mark) {
      const bool reaches = mark->to && has_place(plot_.y, *mark->to);
      there = there || reaches;
      border.push_back({x(mark->x), y(reaches ? *mark->to : mark->y)});
    }
    if (there) svg_.path(border, "band " + style_of(line), true);
  }

  void draw_line(const Line& line, const Ruler& x, const Ruler& y) {
    std::vector<Xy> points;
    for (const Mark& mark : line.marks) points.push_back({x(mark.x), y(mark.y)});
    if (line.joined && points.size() > 1) svg_.path(points, "line " + style_of(line));
    if (line.thin && points.size() > 1) return;
    for (std::size_t i = 0; i < points.size(); ++i)
      svg_.dot(points[i], "dot " + style_of(line), line.marks[i].tip);
  }

  /// Names at the right ends of their lines, moved apart: the legend.
  void draw_names(double left, const Ruler& y, double top, double bottom) {
    std::vector<std::pair<double, const Line*>> names;
    for (const Line& line : lines_) names.emplace_back(y(line.marks.back().y), &line);
    std::ranges::stable_sort(names, {}, [](const auto& name) { return name.first; });
    std::vector<double> places;
    for (const auto& [place, line] : names) places.push_back(place);
    spread(places, top + line_height / 2, bottom);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const Line& line = *names[i].second;
      const Xy middle{left + swatch / 2, places[i]};
      if (line.joined)
        svg_.path(std::array<Xy, 2>{{{left, places[i]}, {left + swatch, places[i]}}},
                  "line " + style_of(line));
      if (!line.thin) svg_.dot(middle, "dot " + style_of(line), "");
      svg_.text({left + swatch + 6, places[i] + 4}, line.name);
    }
  }

  Svg& svg_;
  const Plot& plot_;
  std::vector<Line> lines_;
  double top_;
  double names_;
};

}  // namespace

Svg draw(std::string_view title, const std::vector<Plot>& plots) {
  const double head = title.empty() ? 0 : 1.75 * line_height;
  double height = head;
  double names = 0;
  for (const Plot& plot : plots) {
    height += height_of(plot);
    for (const Line& line : plot.lines) names = std::max(names, text_width(line.name));
  }
  Svg svg(plot_width, height, title.empty() && !plots.empty() ? plots.front().title : title);
  if (!title.empty()) svg.text({edge, line_height + 2}, title, Anchor::start, "ink head");
  double top = head;
  for (const Plot& plot : plots) {
    PlotDrawing(svg, plot, top, names).draw();
    top += height_of(plot);
  }
  return svg;
}

Svg draw(const HeatMap& map) {
  constexpr std::size_t most_with_text = 16;
  constexpr double gap = 1;
  const auto widest = [](const std::vector<std::string>& texts, double least) {
    for (const std::string& text : texts) least = std::max(least, text_width(text));
    return least;
  };
  const bool with_text = map.columns.size() <= most_with_text;
  const double left = std::min(widest(map.rows, text_width(map.row_name)), widest_name) + 20;
  Xy cell{14, 14};
  if (with_text) {
    cell = {widest(map.columns, 30) + 10, 22};
    for (const std::vector<HeatCell>& row : map.cells)
      for (const HeatCell& each : row) cell.x = std::max(cell.x, text_width(each.text) + 8);
  }
  const double top = 3.5 * line_height;
  const double columns = static_cast<double>(map.columns.size());
  const double rows = static_cast<double>(map.rows.size());
  const double bold_title = 1.25 * text_width(map.title) + 24;
  const double width =
      std::max({left + columns * cell.x + 40, bold_title, text_width(map.note) + 24});
  const double height = top + rows * cell.y + (map.note.empty() ? 8 : 1.75 * line_height);
  Svg svg(std::max(width, 320.0), height, map.title);
  svg.text({edge, line_height}, map.title, Anchor::start, "ink head");
  svg.text({left - 8, top - 6}, map.row_name, Anchor::end, "quiet");
  svg.text({left, top - 6 - line_height}, map.column_name, Anchor::start, "quiet");
  const double every = std::ceil((widest(map.columns, 0) + 6) / cell.x);
  for (std::size_t i = 0; i < map.columns.size(); i += static_cast<std::size_t>(every))
    svg.text({left + (static_cast<double>(i) + 0.5) * cell.x, top - 6}, map.columns[i],
             Anchor::middle);
  for (std::size_t r = 0; r < map.cells.size(); ++r) {
    const double y = top + static_cast<double>(r) * cell.y;
    svg.text({left - 8, y + cell.y / 2 + 4}, map.rows[r], Anchor::end);
    for (std::size_t c = 0; c < map.cells[r].size(); ++c) {
      const HeatCell& each = map.cells[r][c];
      const double x = left + static_cast<double>(c) * cell.x;
      svg.rect({x, y}, {cell.x - gap, cell.y - gap}, "cell c1",
               std::clamp(each.strength, 0.0, 1.0) * 0.7, each.tip);
      if (with_text) svg.text({x + cell.x / 2, y + cell.y / 2 + 4}, each.text, Anchor::middle);
    }
  }
  if (!map.note.empty()) svg.text({edge, height - 9}, map.note, Anchor::start, "quiet");
  return svg;
}

}  // namespace tutti::tool
