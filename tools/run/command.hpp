#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/option.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The number of arguments (tutti, "run", ...) that are tutti's own; the rest is PROGRAM and its
/// arguments.
std::size_t own_arguments(const std::vector<std::string>& argv);

/// The options of `tutti run`, which set `to`. `program` is for the help alone.
OptionList run_options(LaunchOptions& to, std::string& program);

/// Checks the options together and sets the command. @throws Failure usage.
void check_run(LaunchOptions& options, const std::vector<std::string>& argv);

}  // namespace tutti::tool
