#pragma once

#include <chrono>
#include <string>

#include "common/exit_code.hpp"

// The commands that measure nothing.

namespace tutti::tool {

/// The version, the backends of this build and the reasons of the choice of "auto", as text or as
/// JSON.
std::string info_text();
std::string info_json();

/// Reads the trace files (*.trace) of a directory and prints what is wrong in each group to stdout,
/// as text or as JSON. Exit::found if something is wrong.
/// @throws Failure usage if the directory cannot be read; unavailable if it has no trace file.
Exit run_diagnose(const std::string& directory, bool json);

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
