#include "report/table.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::tool {
namespace {

constexpr std::size_t page_width = 80;

/// Finds a field by its path; null if there is none. A name may contain a dot: "time_us.p99.9".
const Field* find(const std::vector<Field>& fields, std::string_view path) {
  for (const Field& field : fields) {
    if (field.name == path) return &field;
    if (!path.starts_with(field.name + ".")) continue;
    if (const Field* found = find(field.fields, path.substr(field.name.size() + 1))) return found;
  }
  return nullptr;
}

std::string padded(std::string_view text, int width) {
  return width < 0 ? fmt::format("{:<{}}", text, -width) : fmt::format("{:>{}}", text, width);
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

/// Joins the lines into one, without indentation.
std::string in_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  text.erase(0, text.find_first_not_of(' '));
  return text;
}

std::string markdown(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

}  // namespace

TableRow::TableRow(const Field& row, const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (const Field* field = find(row.fields, path); field && !field->about.column.heading.empty())
      columns_.push_back(field->about.column);
}

std::string TableRow::heading() const {
  std::string first;
  std::string last;
  for (const Column& column : columns_) {
    const std::string_view heading = column.heading;
    const std::size_t end = heading.find('\n');
    const bool two_lines = end != std::string_view::npos;
    first += padded(two_lines ? heading.substr(0, end) : "", column.width);
    last += padded(two_lines ? heading.substr(end + 1) : heading, column.width);
  }
  const bool has_first = first.find_first_not_of(' ') != std::string::npos;
  return (has_first ? trimmed(first) : std::string()) + trimmed(last);
}

std::string TableRow::line() const {
  std::string line;
  for (const Column& column : columns_) line += padded(column.cell, column.width);
  return trimmed(line);
}

std::string TableRow::markdown_heading() const {
  std::vector<std::string> names;
  std::vector<std::string> rules;
  for (const Column& column : columns_) {
    names.push_back(
        in_one_line(column.long_heading.empty() ? column.heading : column.long_heading));
    rules.emplace_back(column.width < 0 ? "---" : "---:");
  }
  return markdown(names) + markdown(rules);
}

std::string TableRow::markdown_line() const {
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(in_one_line(column.cell));
  return markdown(cells);
}

std::string wrapped(const std::vector<std::string>& items, std::string_view separator,
                    std::string_view indent) {
  std::string text;
  std::size_t column = 0;
  for (const std::string& item : items) {
    std::string_view before = "  ";
    if (column != 0) before = separator;
    if (column != 0 && column + separator.size() + item.size() > page_width) {
      text += '\n';
      column = 0;
      before = indent;
    }
    text += before;
    text += item;
    column += before.size() + item.size();
  }
  return text + '\n';
}

std::string paragraph(const std::string& text) {
  std::istringstream words(text);
  return wrapped({std::istream_iterator<std::string>(words), {}}, " ", "        ");
}

}  // namespace tutti::tool
