#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/backend/backend.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// One call of this rank, as the trace remembers it.
struct TraceEntry {
  enum class State : std::uint8_t { running, done, failed, refused };

  std::uint64_t seq = 0;  ///< In the group, or for send and recv in its ordered pair and tag.
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceOp::Kind reduce = ReduceOp::Kind::sum;
  std::int64_t bytes = 0;  ///< Of `in`, or of `out` where a rank has no input.
  int peer = -1;           ///< Root or peer, also any_peer; -1 where there is none.
  std::uint32_t ops = 1;   ///< More than one: a coalesced call, described by its first.
  State state = State::running;
  bool async = false;  ///< An async call stays `running` until its Work is collected.
  std::chrono::steady_clock::time_point started{};  ///< To about 4 ms.
  std::string name{};                               ///< The first 16 bytes of CallOptions::name.
};

/// The last calls of a group, oldest first; at most 64 collectives and 64 of point-to-point.
using Trace = std::vector<TraceEntry>;

/// "all_reduce #17 sum 4096 B done", one line.
std::string to_string(const TraceEntry& entry);

}  // namespace tutti
