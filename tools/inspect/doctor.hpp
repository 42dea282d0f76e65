#pragma once

#include <chrono>
#include <string>

#include "common/exit_code.hpp"

namespace tutti::tool {

struct DoctorOptions {
  std::string backend = "auto";  ///< Of the group that the ranks of a launcher make.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  bool json = false;
};

/// Checks what keeps this machine from running: one process alone, or all ranks of a launcher,
/// which rank 0 compares. Rank 0 prints the results to stdout. Exit::found on all ranks if there is
/// a problem.
Exit run_doctor(const DoctorOptions& options);

}  // namespace tutti::tool
