#include <tutti/cluster.hpp>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "internal/fail.hpp"

namespace tutti {

ClusterEnvironment::~ClusterEnvironment() = default;

namespace {

std::optional<int> read_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view value = text;
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0)
    internal::failf(Errc::invalid_argument, "{} is '{}'; it must be a number >= 0", name, value);
  return number;
}

/// The names of one launcher. Rank and size come from the same one, never mixed.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node;
};

constexpr Names launchers[] = {
    {"tutti", "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_NODE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"},
};

}  // namespace

std::optional<ClusterInfo> VariablesEnvironment::detect() const {
  for (const auto& names : launchers) {
    const auto rank = read_number(names.rank);
    const auto size = read_number(names.size);
    if (!rank && !size) continue;
    if (!rank || !size)
      internal::failf(Errc::invalid_argument, "{} is set, but {} is not; a launcher sets both",
                      rank ? names.rank : names.size, rank ? names.size : names.rank);
    const auto local_rank = read_number(names.local_rank);
    const auto local_size = read_number(names.local_size);
    const auto check_rank = [](const char* rank_name, int r, const char* size_name, int n) {
      if (r >= n)
        internal::failf(Errc::invalid_argument, "{} is {}, but {} is {}; the rank must be smaller",
                        rank_name, r, size_name, n);
    };
    check_rank(names.rank, *rank, names.size, *size);
    if (local_rank && local_size)
      check_rank(names.local_rank, *local_rank, names.local_size, *local_size);
    if (local_size && *local_size > *size)
      internal::failf(Errc::invalid_argument,
                      "{} is {}, but {} is {}; a host has no more ranks than there are",
                      names.local_size, *local_size, names.size, *size);
    const char* store = std::getenv("TUTTI_STORE");
    return ClusterInfo{.launcher = names.launcher,
                       .rank = *rank,
                       .size = *size,
                       .local_rank = local_rank.value_or(-1),
                       .local_size = local_size.value_or(-1),
                       .node = read_number(names.node).value_or(-1),
                       .store = store == nullptr ? "" : store};
  }
  return std::nullopt;
}

}  // namespace tutti
