#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/names.hpp"
#include "report/svg.hpp"

// Plots and heat maps.

namespace tutti::tool {

/// The texts of an axis's ticks: "64 KiB", "20 µs", "500 MB/s", "0.5".
enum class Scale : std::uint8_t { bytes, us, gbps, number };
template <>
inline constexpr Names<4> names_of<Scale>{"bytes", "us", "gbps", "number"};

struct Axis {
  std::string name{};
  Scale scale = Scale::number;
  bool log = true;
};

struct Mark {
  double x = 0;
  double y = 0;
  std::optional<double> to{};  ///< The band reaches from y to here.
  std::string tip{};
};

/// Marks from left to right. A mark that a logarithmic axis cannot have is left out.
struct Line {
  std::string name{};
  std::vector<Mark> marks{};
  int style = 0;       ///< Color style % line_colors; from line_colors on with dashes.
  bool thin = false;   ///< In the background, without dots.
  bool joined = true;  ///< False: only dots.
};

/// A frame with two axes. Names of lines stand at their right ends.
struct Plot {
  std::string title{};
  Axis x{};
  Axis y{};
  std::vector<Line> lines{};
  std::string note{};  ///< Below the plot.
};

/// Draws plots one below the other. A plot without marks has only title and note.
/// `title` stands above them; may be empty.
Svg draw(std::string_view title, const std::vector<Plot>& plots);

struct HeatCell {
  std::string text{};
  double strength = 0;  ///< Of its color, from 0 to 1.
  std::string tip{};    ///< May be empty.
};

struct HeatMap {
  std::string title{};
  std::string row_name{};  ///< What a row is: "rank".
  std::vector<std::string> rows{};
  std::string column_name{};
  std::vector<std::string> columns{};
  std::vector<std::vector<HeatCell>> cells{};  ///< A list per row.
  std::string note{};
};

/// With many columns the cells have no texts.
Svg draw(const HeatMap& map);

}  // namespace tutti::tool
