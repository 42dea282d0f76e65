#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/axis.hpp"
#include "report/svg.hpp"

// Plots and heat maps.

namespace tutti::tool {

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
  bool joined = true;  ///< False: only dots. The name of a single one stands beside it.
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
