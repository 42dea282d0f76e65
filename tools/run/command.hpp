#pragma once

#include <string>
#include <vector>

#include "common/option.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The options of `tutti run`.
class RunCommand {
 public:
  /// How many of the arguments (program, "run", ...) are for tutti; what follows is PROGRAM and
  /// its own.
  static std::size_t own_arguments(const std::vector<std::string>& argv);

  /// They are written to this object.
  OptionList options();
  /// @throws Failure usage.
  LaunchOptions parse(const std::vector<std::string>& argv) const;

 private:
  std::string ranks_{};
  std::string nodes_{};
  std::string node_{};
  std::string rendezvous_{};
  std::string join_timeout_{};
  std::string program_{};
};

}  // namespace tutti::tool
