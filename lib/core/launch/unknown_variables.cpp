#include "launch/unknown_variables.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace tutti::internal {
namespace {

constexpr std::string_view prefix = "TUTTI_";
constexpr std::string_view of_tests = "TUTTI_TEST_";

// tests/lint/environment.py compares them with docs/environment.md.
constexpr std::array<std::string_view, 26> known_variables{"BACKEND",      "CHECK",
                                                           "DEAD_AFTER",   "DEVICE_BACKEND",
                                                           "HOSTS",        "IFNAME",
                                                           "JOB",          "LOCAL_RANK",
                                                           "LOCAL_SIZE",   "LOG",
                                                           "NODE",         "POLL_NS",
                                                           "PORTS",        "RANK",
                                                           "REPRODUCIBLE", "SHM_READS",
                                                           "SIZE",         "STORE",
                                                           "STORE_HOSTED", "STORE_OPEN",
                                                           "STORE_PORT",   "TCP_CONNECTIONS",
                                                           "TLS",          "TOKEN",
                                                           "TOKEN_FILE",   "TRACE_DIR"};

/// The least number of letters to add, remove or change (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> unknown_variables(const char* const* environment) {
  std::vector<std::string> sentences;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    std::string_view name = *environment;
    name = name.substr(0, name.find('='));
    if (!name.starts_with(prefix) || name.starts_with(of_tests)) continue;
    name.remove_prefix(prefix.size());
    const auto nearest = std::ranges::min_element(
        known_variables, {}, [&](std::string_view known) { return edit_distance(name, known); });
    const std::size_t distance = edit_distance(name, *nearest);
    if (distance == 0) continue;
    sentences.push_back(fmt::format("nothing reads the environment variable {}{}{}", prefix, name,
                                    distance <= std::min(std::size_t{2}, name.size() / 3)
                                        ? fmt::format("; did you mean {}{}?", prefix, *nearest)
                                        : std::string()));
  }
  return sentences;
}

}  // namespace tutti::internal
