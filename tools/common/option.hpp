#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tutti::tool {

/// An option of a command. CLI11 fills it with text in main.cpp; the command interprets it.
struct Option {
  std::string_view names;  ///< "-n,--ranks"; positional arguments have no dash.
  /// Options with a list may be repeated.
  std::variant<std::string*, std::vector<std::string>*, bool*> value;
  std::string_view help{};
  std::string_view type{};   ///< "TIME".
  std::string_view group{};  ///< Heading in the help.
};
using OptionList = std::vector<Option>;

}  // namespace tutti::tool
