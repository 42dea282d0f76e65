#include "report/json.hpp"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace tutti::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json, int indent) {
  // Arguments and host names may have any bytes.
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json plain_value(const Field& field) {
  return std::visit([](const auto& value) { return Json(value); }, field.plain);
}

Json value_of(const Field& field) {
  if (field.absent) return field.about.instead.empty() ? Json(nullptr) : Json(field.about.instead);
  if (!field.item_type.empty()) {
    Json list = Json::array();
    for (const Field& item : field.items) list.push_back(value_of(item));
    return list;
  }
  if (field.fields.empty()) return plain_value(field);
  Json object = Json::object();
  for (const Field& inner : field.fields)
    if (!inner.absent || !inner.about.omitted) object[inner.name] = value_of(inner);
  return object;
}

// The schema.

Json type_of(const Plain& plain) {
  static constexpr auto name = []<typename T>(const T&) {
    return std::is_same_v<T, bool>          ? "boolean"
           : std::is_integral_v<T>          ? "integer"
           : std::is_floating_point_v<T>    ? "number"
           : std::is_same_v<T, std::string> ? "string"
                                            : "object";
  };
  return std::visit(
      []<typename T>(const T& value) -> Json {
        if constexpr (requires { value.front(); } && !std::is_same_v<T, std::string>)
          return {{"type", "array"}, {"items", {{"type", name(typename T::value_type())}}}};
        else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>)
          return {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
        else
          return {{"type", name(value)}};
      },
      plain);
}

Json schema_of(const Field& field);

Json object_schema(const Field& object) {
  Json required = Json::array();
  Json properties = Json::object();
  for (const Field& field : object.fields) {
    if (!field.about.omitted) required.push_back(field.name);
    properties[field.name] = schema_of(field);
  }
  Json schema{{"type", "object"},
              {"required", std::move(required)},
              {"additionalProperties", false},
              {"properties", std::move(properties)}};
  if (!object.more_numbers.empty())
    schema["patternProperties"][std::string(object.more_numbers)] = {{"type", "number"}};
  return schema;
}

Json schema_of(const Field& field) {
  const About& about = field.about;
  Json schema;
  if (!field.item_type.empty())
    schema = {{"type", "array"}, {"items", object_schema(field.item_type.front())}};
  else if (!field.fields.empty())
    schema = object_schema(field);
  else
    schema = type_of(field.plain);
  Json& value = schema.contains("items") ? schema["items"] : schema;
  if (about.constant) schema = {{"const", plain_value(field)}};
  if (!field.names.empty()) value = {{"enum", field.names}};
  if (about.at_least) value["minimum"] = *about.at_least;
  if (about.above) value["exclusiveMinimum"] = *about.above;
  if (about.below) value["exclusiveMaximum"] = *about.below;
  if (!about.format.empty()) value["format"] = about.format;
  if (field.optional && !about.omitted) {
    if (!about.instead.empty())
      schema = {{"oneOf", Json::array({{{"const", about.instead}}, schema})}};
    else if (schema.contains("enum"))
      schema["enum"].push_back(nullptr);
    else
      schema["type"] = Json::array({schema["type"], "null"});
  }
  if (!field.text.empty()) schema["description"] = field.text;
  return schema;
}

// Rows.

/// Adds the fields below `field` by their paths. Fields of an absent object are null.
void flatten(Json& flat, const std::string& path, const Field& field, bool absent = false) {
  absent = absent || field.absent;
  if (field.absent && field.about.omitted) return;
  if (field.fields.empty()) {
    flat[path] = absent && !field.absent ? Json(nullptr) : value_of(field);
    return;
  }
  for (const Field& inner : field.fields)
    flatten(flat, path.empty() ? inner.name : fmt::format("{}.{}", path, inner.name), inner,
            absent);
}

std::vector<Json> flat_rows(const Field& run, std::span<const std::string_view> shared) {
  Json head = Json::object();
  const std::vector<Field>* results = nullptr;
  for (const Field& field : run.fields) {
    if (field.name == "results")
      results = &field.items;
    else if (field.item_type.empty())
      flatten(head, field.name, field);
  }
  Json first = Json::object();
  for (const std::string_view path : shared)
    first[std::string(path)] = head.value(std::string(path), Json());
  std::vector<Json> rows;
  for (const Field& result : *results) {
    rows.push_back(first);
    flatten(rows.back(), "", result);
  }
  return rows;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::ostringstream field;
  field << std::quoted(text, '"', '"');
  return field.str();
}

std::string plain_text(const Json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? value.get<std::string>() : dump(value, -1);
}

std::string csv_field(const Json& value) {
  if (!value.is_array()) return quoted(plain_text(value));
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(plain_text(item));
  return quoted(fmt::format("{}", fmt::join(items, " ")));
}

}  // namespace

std::string to_json(const Field& object) {
  return dump(value_of(object), 2) + "\n";
}

std::string json_schema(std::string_view id, std::string_view title, const Field& object) {
  Json whole{
      {"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"$id", id}, {"title", title}};
  whole.update(object_schema(object));
  return dump(whole, 2) + "\n";
}

std::string to_ndjson(const Field& run, std::span<const std::string_view> shared) {
  std::string text;
  for (const Json& row : flat_rows(run, shared)) text += fmt::format("{}\n", dump(row, -1));
  return text;
}

std::string to_csv(const Field& run, std::span<const std::string_view> shared) {
  const std::vector<Json> rows = flat_rows(run, shared);
  Json columns = Json::object();
  for (const Json& row : rows) columns.update(row);
  const auto line = [&columns](const auto& cell) {
    std::vector<std::string> cells;
    for (const auto& [name, value] : columns.items()) cells.push_back(cell(name));
    return fmt::format("{}\n", fmt::join(cells, ","));
  };
  std::string text = rows.empty() ? std::string() : line(quoted);
  for (const Json& row : rows)
    text += line([&row](const std::string& name) { return csv_field(row.value(name, Json())); });
  return text;
}

}  // namespace tutti::tool
