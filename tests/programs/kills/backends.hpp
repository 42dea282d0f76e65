#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "support/worlds.hpp"

namespace tutti::test {

/// The backends of this build whose ranks can be processes of this machine.
inline std::vector<std::string> backends_between_processes() {
  const auto can_run = [](std::string_view name) {
    return std::ranges::any_of(backends(), [&](const BackendEntry& entry) {
      return entry.name == name && entry.unavailable().empty();
    });
  };
  std::vector<std::string> found;
  for (const std::string backend : {"gloo", "shm", "tcp", "ucx"})
    if (can_run(backend)) found.push_back(backend_here(backend));
  for (const std::string outer : {"gloo", "tcp", "ucx"})
    if (can_run("hier") && can_run("shm") && can_run(outer))
      found.push_back(backend_here("hier:shm+" + outer));
  return found;
}

/// The name of a case.
struct BackendText {
  std::string operator()(const testing::TestParamInfo<std::string>& of) const {
    auto name = of.param;
    for (char& c : name)
      if (c == ':' || c == '+') c = '_';
    return name;
  }
};

}  // namespace tutti::test
