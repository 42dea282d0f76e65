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
constexpr double widest_name = 190;
constexpr double line_height = Svg::line_height;

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

/// A single dot, whose name stands beside it.
bool is_label(const Line& line) {
  return !line.joined && line.marks.size() == 1;
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
    const Ruler x(plot_.x, xs, left_margin, right, 64);
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
    draw_labels(x, y);
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

  /// Names of single dots, each as far above its dot as it needs to be free of the names before.
  void draw_labels(const Ruler& x, const Ruler& y) {
    struct Box {
      double left;
      double right;
      double bottom;
    };
    std::vector<Box> boxes;
    for (const Line& line : lines_) {
      if (!is_label(line)) continue;
      const Xy dot{x(line.marks[0].x), y(line.marks[0].y)};
      const double width = text_width(line.name);
      const bool fits = dot.x + width < plot_width - edge;
      const double left = fits ? dot.x - 2 : dot.x - width;
      double bottom = dot.y - 7;
      for (const Box& box : boxes)  // From the bottom up.
        if (left < box.right && box.left < left + width &&
            std::abs(bottom - box.bottom) < line_height)
          bottom = box.bottom - line_height;
      boxes.push_back({left, left + width, bottom});
      std::ranges::sort(boxes, {}, [](const Box& box) { return -box.bottom; });
      if (bottom < dot.y - line_height)
        svg_.path(std::array<Xy, 2>{{dot, {dot.x, bottom + 2}}}, "grid");
      svg_.text({fits ? left : dot.x + 2, bottom}, line.name, fits ? Anchor::start : Anchor::end);
    }
  }

  /// Names at the right ends of their lines, moved apart: the legend.
  void draw_names(double left, const Ruler& y, double top, double bottom) {
    std::vector<std::pair<double, const Line*>> names;
    for (const Line& line : lines_)
      if (!is_label(line)) names.emplace_back(y(line.marks.back().y), &line);
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
    for (const Line& line : plot.lines)
      if (!is_label(line)) names = std::max(names, text_width(line.name));
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
