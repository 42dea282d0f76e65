#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// The writer of SVG pictures. figures.hpp draws plots with it.

namespace tutti::tool {

/// Pixels from the left and from the top.
struct Xy {
  double x = 0;
  double y = 0;
};

enum class Anchor : std::uint8_t { start, middle, end };

/// Width in pixels of `text` in a picture. A bound: the usual sans-serif fonts need no more.
double text_width(std::string_view text);

/// Text for XML and HTML: replaces markup, and the bytes and characters that XML cannot hold.
std::string escaped(std::string_view text);

/// One picture. Text never leaves it: a text that is too long for the room from its anchor to the
/// edge ends with an ellipsis, and has the whole as its tooltip.
class Svg {
 public:
  static constexpr double line_height = 16;
  static constexpr double font_size = 12;

  /// `title` is what screen readers say.
  Svg(double width, double height, std::string_view title);

  /// `kinds`: classes of figure_style().
  void text(Xy at, std::string_view text, Anchor anchor = Anchor::start,
            std::string_view kinds = "ink");
  void path(std::span<const Xy> points, std::string_view kinds, bool closed = false);
  /// `tip`: shown while the pointer is over it; may be empty.
  void dot(Xy at, std::string_view kinds, std::string_view tip);
  /// `strength`: opacity, from 0 to 1.
  void rect(Xy at, Xy size, std::string_view kinds, double strength, std::string_view tip);

  /// A file with its own style sheet.
  std::string file() const;
  /// An element of a page that has figure_style().
  std::string element() const;

 private:
  std::string picture(std::string_view style) const;

  double width_;
  double height_;
  std::string title_;
  std::string parts_{};
};

/// The style sheet of pictures, with light and dark colors. `c0` to `c7` are the colors of lines;
/// they differ for all common kinds of color vision.
constexpr int line_colors = 8;
std::string_view figure_style();

}  // namespace tutti::tool
