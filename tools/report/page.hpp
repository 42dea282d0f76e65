#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/option.hpp"
#include "report/saved_run.hpp"

namespace tutti::tool {

/// The HTML page of up to six runs: one file without scripts that loads nothing.
std::string page_of(std::span<const SavedRun> runs);

/// The command line of `tutti report`.
struct ReportCommand {
  std::vector<std::string> files{};
  std::string out{};

  OptionList options();
  /// Draws the files into `out`. @throws Failure usage.
  Exit run() const;
};

}  // namespace tutti::tool
