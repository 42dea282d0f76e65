#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::tool {

/// The text of an option, and what help and shell completion say about it.
struct Reader {
  template <std::invocable<std::string_view, const std::string&> F>
  Reader(F reads, std::vector<std::string_view> its_choices = {}, std::string its_default = {})
      : read(std::move(reads)),
        choices(std::move(its_choices)),
        default_text(std::move(its_default)) {}

  /// Reads the text of an option, which errors name. @throws Failure usage.
  std::function<void(std::string_view option, const std::string& text)> read;
  std::vector<std::string_view> choices;  ///< Completion offers them; constants or literals.
  std::string default_text;               ///< Help ends with it, if it is not empty.
};

/// An option of a command. CommandLine passes it to CLI11.
struct Option {
  std::string_view names;  ///< "-n,--ranks"; positional arguments have no dash.
  /// Options with a list may be repeated.
  std::variant<std::string*, std::vector<std::string>*, bool*, Reader> value;
  std::string_view help{};
  std::string_view
      type{};  ///< "TIME". LIST: choices with commas; completion offers files for FILE, DIR.
  std::string_view group{};                 ///< Heading in the help.
  std::vector<std::string_view> choices{};  ///< As of a Reader, for lists.
};
using OptionList = std::vector<Option>;

}  // namespace tutti::tool
