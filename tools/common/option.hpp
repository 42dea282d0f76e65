#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tutti::tool {

/// Reads the text of an option, which errors name. @throws Failure usage.
using Reader = std::function<void(std::string_view option, const std::string& text)>;

/// An option of a command. CLI11 passes its text on in main.cpp.
struct Option {
  std::string_view names;  ///< "-n,--ranks"; positional arguments have no dash.
  /// Options with a list may be repeated.
  std::variant<std::string*, std::vector<std::string>*, bool*, Reader> value;
  std::string_view help{};
  std::string_view type{};   ///< "TIME".
  std::string_view group{};  ///< Heading in the help.
};
using OptionList = std::vector<Option>;

}  // namespace tutti::tool
