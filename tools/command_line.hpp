#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include "common/option.hpp"

// The options of the program: for CLI11, and as JSON for man pages and shell completion.

namespace tutti::tool {

struct Subcommand {
  std::string_view name;   ///< "bench step".
  std::string_view usage;  ///< What follows the name on a command line.
  std::string_view help;
  std::string_view examples;     ///< A command a line, which ends with a newline.
  bool in_tutti_report = false;  ///< Of the Python program, which knows the options.
};

/// Commands and the options that they were given. A resource type.
class CommandLine {
 public:
  /// `program` is the name, usage and help of the program itself.
  explicit CommandLine(const Subcommand& program);

  /// Adds a subcommand of `parent`.
  CLI::App* add(CLI::App& parent, const Subcommand& command);
  /// Defines the options of a command.
  void define(CLI::App& command, const OptionList& options);

  /// All commands and options as JSON.
  std::string description() const;

  CLI::App app;

 private:
  std::vector<std::pair<const CLI::App*, Subcommand>> commands_{};
  std::map<const CLI::Option*, std::vector<std::string_view>> choices_{};
};

/// "; did you mean --warmup?" for "--warm-up"; empty if no option of `app` is alike.
std::string hint(const CLI::App& app, std::string_view unknown);

}  // namespace tutti::tool
