#include "report/svg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

namespace tutti::tool {
namespace {

constexpr std::string_view ellipsis = "…";
constexpr double padding = 4;  // Between text and the edge.
constexpr double bold = 1.2;   // Width of bold text.

/// Takes the next character of UTF-8; U+FFFD for bytes that are none and for what XML cannot hold.
char32_t take(std::string_view& text) {
  constexpr char32_t replacement = 0xFFFD;
  const auto first = static_cast<unsigned char>(text.front());
  text.remove_prefix(1);
  if (first < 0x80) {
    const bool allowed = first >= 0x20 || first == '\t' || first == '\n' || first == '\r';
    return allowed && first != 0x7F ? first : replacement;
  }
  const std::size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4 || text.size() < more) return replacement;
  char32_t value = first & (0x3FU >> more);
  for (std::size_t i = 0; i < more; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return replacement;
    value = value << 6U | (next & 0x3FU);
  }
  constexpr std::array<char32_t, 4> least{0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < least[more] || surrogate || value > 0x10FFFF || (value & 0xFFFEU) == 0xFFFE)
    return replacement;
  text.remove_prefix(more);
  return value;
}

/// In ems: a bound of the widths in DejaVu Sans, which is wider than Helvetica and Arial.
double width_of(char32_t character) {
  constexpr std::u32string_view narrow = U" !'()*,-./:;I[]\\fijlrt|";
  constexpr std::u32string_view wide = U"#%&@GMOQW^mw<>+=~";
  if (narrow.find(character) != narrow.npos) return 0.5;
  if (wide.find(character) != wide.npos) return 1;
  if (character >= 0x1100) return 1.4;  // Wide scripts, emoji.
  if (character >= 0x100) return 1.1;
  const bool small = character >= 'a' || (character >= '0' && character <= '9');
  return small ? 0.65 : 0.78;
}

/// The longest beginning of `text` that fits, with an ellipsis if it is not all.
std::string fitted(std::string_view text, double room) {
  if (text_width(text) <= room) return std::string(text);
  room -= text_width(ellipsis);
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view after = rest;
    room -= width_of(take(after)) * Svg::font_size;
    if (room < 0) break;
    rest = after;
  }
  return fmt::format("{}{}", text.substr(0, text.size() - rest.size()), ellipsis);
}

std::string tooltip(std::string_view text) {
  return text.empty() ? std::string() : fmt::format("<title>{}</title>", escaped(text));
}

}  // namespace

double text_width(std::string_view text) {
  double ems = 0;
  while (!text.empty()) ems += width_of(take(text));
  return ems * Svg::font_size;
}

std::string escaped(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t character = take(text);
    if (character == '&')
      clean += "&amp;";
    else if (character == '<')
      clean += "&lt;";
    else if (character == '>')
      clean += "&gt;";
    else if (character == '"')
      clean += "&quot;";
    else if (character == 0xFFFD)
      clean += "\uFFFD";
    else
      clean += before.substr(0, before.size() - text.size());
  }
  return clean;
}

Svg::Svg(double width, double height, std::string_view title)
    : width_(width), height_(height), title_(title) {}

void Svg::text(Xy at, std::string_view text, Anchor anchor, std::string_view kinds) {
  static constexpr std::array<std::string_view, 3> names{"start", "middle", "end"};
  const double left = at.x - padding;
  const double right = width_ - at.x - padding;
  const std::array<double, 3> rooms{right, 2 * std::min(left, right), left};
  const auto which = static_cast<std::size_t>(anchor);
  at.y = std::clamp(at.y, font_size, height_ - padding);
  const double factor = kinds.find("head") == kinds.npos ? 1 : bold;
  const std::string shown = fitted(text, rooms[which] / factor);
  parts_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}{}</text>\n", at.x, at.y,
      names[which], kinds, escaped(shown), tooltip(shown == text ? std::string_view() : text));
}

void Svg::path(std::span<const Xy> points, std::string_view kinds, bool closed) {
  parts_ += fmt::format("<path class=\"{}\" d=\"", kinds);
  for (const Xy& point : points)
    parts_ += fmt::format("{}{:.1f} {:.1f}", &point == points.data() ? 'M' : 'L', point.x, point.y);
  parts_ += closed ? "Z\"/>\n" : "\"/>\n";
}

void Svg::dot(Xy at, std::string_view kinds, std::string_view tip) {
  parts_ += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\">{}</circle>\n",
                        kinds, at.x, at.y, tooltip(tip));
}

void Svg::rect(Xy at, Xy size, std::string_view kinds, double strength, std::string_view tip) {
  parts_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill-opacity=\"{:.2f}\">{}</rect>\n",
      kinds, at.x, at.y, size.x, size.y, strength, tooltip(tip));
}

std::string Svg::picture(std::string_view style) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n{3}"
      "<rect class=\"paper\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n{4}</svg>\n",
      width_, height_, escaped(title_), style, parts_);
}

std::string Svg::file() const {
  return picture(fmt::format("<style>\n{}</style>\n", figure_style()));
}

std::string Svg::element() const {
  return picture("");
}

std::string_view figure_style() {
  // The light colors of lines are those of Okabe and Ito, darker where white needs it.
  return R"(.figure{font:12px Helvetica,Arial,"DejaVu Sans",sans-serif}
.figure .ink{fill:#222}.figure .quiet{fill:#666}.figure .head{font-weight:bold}
.figure .paper{fill:#fff}.figure .grid{fill:none;stroke:#e2e2e2}.figure .axis{fill:none;stroke:#888}
.figure .line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}
.figure .thin{stroke-width:1.1}.figure .d1{stroke-dasharray:6 3}.figure .d2{stroke-dasharray:2 3}
.figure .dot,.figure .cell{fill:currentColor}
.figure .band{fill:currentColor;fill-opacity:.1;stroke:currentColor;stroke-opacity:.15;stroke-width:2;stroke-linejoin:round}
.figure .c0{color:#0072b2}.figure .c1{color:#d55e00}.figure .c2{color:#009e73}.figure .c3{color:#b5308b}
.figure .c4{color:#8a6d00}.figure .c5{color:#3a9bd0}.figure .c6{color:#6a4bc0}.figure .c7{color:#68727c}
@media screen and (prefers-color-scheme:dark){
.figure .ink{fill:#e4e4e4}.figure .quiet{fill:#a5a5a5}
.figure .paper{fill:#17191d}.figure .grid{stroke:#33363b}.figure .axis{stroke:#85888d}
.figure .c0{color:#4fa9e8}.figure .c1{color:#ff8a45}.figure .c2{color:#2fcf9c}.figure .c3{color:#ee86c8}
.figure .c4{color:#dcbb3a}.figure .c5{color:#a5dbff}.figure .c6{color:#b49bff}.figure .c7{color:#a3adb8}
}
)";
}

}  // namespace tutti::tool
