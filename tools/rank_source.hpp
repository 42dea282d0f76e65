#pragma once

#include <optional>

#include <tutti/backend/backend.hpp>
#include <tutti/process_group.hpp>

#include "bench.hpp"
#include "device.hpp"

namespace tutti::tool {

/// Where the ranks of a run come from.
struct RankSource {
  enum class Kind : std::uint8_t {
    threads,   ///< `group.size` threads of this process.
    launches,  ///< This process starts processes and measures nothing itself.
    member     ///< This process is rank `group.rank` of `group.size`.
  };
  Kind kind = Kind::threads;
  GroupOptions group{};
  Placement placement{};  ///< Of threads; a member has its device in `group`.
  int local_size = 1;     ///< Ranks on this host, as far as is known.
};

/// @throws Failure usage, or unavailable when the launcher started something else than was asked
///         for, or the ranks cannot meet.
RankSource find_ranks(const BenchOptions& options, const BackendChoice& backend);

}  // namespace tutti::tool
