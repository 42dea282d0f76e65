#pragma once

#include <string>
#include <vector>

#include "common/option.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The options of `tutti run`.
class RunCommand {
 public:
  /// The number of arguments (tutti, "run", ...) that are tutti's own; the rest is PROGRAM and its
  /// arguments.
  static std::size_t own_arguments(const std::vector<std::string>& argv);

  /// Returns the options for CLI11, which writes their texts to this object.
  OptionList options();
  /// @throws Failure usage.
  LaunchOptions parse(const std::vector<std::string>& argv) const;

 private:
  std::string ranks_{};
  std::string nodes_{};
  std::string node_{};
  std::string rendezvous_{};
  std::string token_file_{};
  std::string join_timeout_{};
  bool keep_going_ = false;
  std::string program_{};
};

}  // namespace tutti::tool
