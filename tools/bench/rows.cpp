#include "bench/rows.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::tool {
namespace {

/// Of the run, in every row.
constexpr std::array<std::string_view, 9> shared{"started",     "status",       "tool.version",
                                                 "tool.git",    "backend.name", "backend.transport",
                                                 "world.hosts", "config.mode",  "config.rank_agg"};

/// Objects that may be null: a null has the same columns.
constexpr std::array<std::string_view, 5> first_wrong{"rank", "array", "index", "expected", "got"};

void add(Json& flat, const std::string& name, const Json& value) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      add(flat, fmt::format("{}.{}", name, key), inner);
  } else if (name == "first_wrong") {
    for (const std::string_view key : first_wrong) flat[fmt::format("{}.{}", name, key)] = nullptr;
  } else {
    flat[name] = value;
  }
}

std::vector<Json> flat_rows(const Json& run) {
  Json head = Json::object();
  for (const std::string_view column : shared) {
    std::string path = fmt::format("/{}", column);
    std::replace(path.begin(), path.end(), '.', '/');
    head[std::string(column)] = run.value(Json::json_pointer(path), Json());
  }
  std::vector<Json> rows;
  for (const Json& result : run.at("results")) {
    Json flat = head;
    for (const auto& [key, value] : result.items()) add(flat, key, value);
    rows.push_back(std::move(flat));
  }
  return rows;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) {
    if (c == '"') field += '"';
    field += c;
  }
  return field + '"';
}

std::string plain(const Json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? value.get<std::string>() : dump(value, -1);
}

std::string field(const Json& value) {
  if (!value.is_array()) return quoted(plain(value));
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(plain(item));
  return quoted(fmt::format("{}", fmt::join(items, " ")));
}

}  // namespace

std::string to_ndjson(const Json& run) {
  std::string text;
  for (const Json& row : flat_rows(run)) text += fmt::format("{}\n", dump(row, -1));
  return text;
}

std::string to_csv(const Json& run) {
  std::string text;
  for (const Json& row : flat_rows(run)) {
    std::vector<std::string> names;
    std::vector<std::string> values;
    for (const auto& [name, value] : row.items()) {
      names.push_back(quoted(name));
      values.push_back(field(value));
    }
    if (text.empty()) text = fmt::format("{}\n", fmt::join(names, ","));
    text += fmt::format("{}\n", fmt::join(values, ","));
  }
  return text;
}

}  // namespace tutti::tool
