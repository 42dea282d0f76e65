// Draws a plot of the documents, which do not have runs of `tutti bench`: reads its description
// from stdin, writes the SVG to stdout.
//
//   {"x": {"name": "bytes", "scale": "bytes"}, "y": {"name": "time", "scale": "us"},
//    "lines": [{"name": "a", "marks": [[8, 1.5], [64, 2]]}]}
//
// The other fields are those of Plot and Line (figures.hpp).

#include <exception>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/text.hpp"
#include "report/figures.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;

Axis axis_of(const Json& json) {
  return {json.at("name"), parse_choice<Scale>("scale", json.at("scale").get<std::string>()),
          json.value("log", true)};
}

Line line_of(const Json& json) {
  Line line{json.at("name"),
            {},
            json.value("style", 0),
            json.value("thin", false),
            json.value("joined", true)};
  for (const Json& mark : json.at("marks")) line.marks.push_back({mark.at(0), mark.at(1), {}, {}});
  return line;
}

Plot plot_of(const Json& json) {
  Plot plot{json.value("title", ""),
            axis_of(json.at("x")),
            axis_of(json.at("y")),
            {},
            json.value("note", "")};
  for (const Json& line : json.at("lines")) plot.lines.push_back(line_of(line));
  return plot;
}

}  // namespace
}  // namespace tutti::tool

int main() {
  try {
    std::cout
        << tutti::tool::draw("", {tutti::tool::plot_of(nlohmann::json::parse(std::cin))}).file();
  } catch (const std::exception& error) {
    fmt::print(stderr, "draw: {}\n", error.what());
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
