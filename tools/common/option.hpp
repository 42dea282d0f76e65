#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tutti::tool {

/// An option of a command. main.cpp lets CLI11 fill it in as text; the command gives it a meaning.
struct Option {
  /// Specified, but not in this release: refused by name rather than ignored.
  struct Later {};

  std::string_view names;  ///< "-n,--ranks"; an argument has no dash.
  /// A list may be given several times.
  std::variant<std::string*, std::vector<std::string>*, bool*, Later> value;
  std::string_view help{};
  std::string_view type{};   ///< "TIME".
  std::string_view group{};  ///< Its heading in the help.
};
using OptionList = std::vector<Option>;

}  // namespace tutti::tool
