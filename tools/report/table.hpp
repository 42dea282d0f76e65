#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/fields.hpp"

namespace tutti::tool {

/// Selected fields of a row as a line of a table.
class TableRow {
 public:
  /// @param paths  of the columns, as in to_csv(): "time_us.p50". Leaves out paths that the row
  /// lacks.
  TableRow(const Field& row, const std::vector<std::string>& paths);

  // Both end with a newline.
  std::string heading() const;
  std::string line() const;
  std::string markdown_heading() const;
  std::string markdown_line() const;

 private:
  std::vector<Column> columns_{};
};

/// Items joined by `separator`, in lines of at most 80 columns; all but the first begin with
/// `indent`.
std::string wrapped(const std::vector<std::string>& items, std::string_view separator,
                    std::string_view indent);

/// Wraps a text in lines of at most 80 columns, all but the first indented further.
std::string paragraph(const std::string& text);

}  // namespace tutti::tool
