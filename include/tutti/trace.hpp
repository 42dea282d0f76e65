#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/operation.hpp>
#include <tutti/reduce_op.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// One call of this rank in the trace.
struct TraceEntry {
  /// The progress of the call. A refused call was never launched: its arguments are wrong or
  /// unsupported.
  enum class State : std::uint8_t { running, done, failed, refused };

  std::uint64_t seq = 0;  ///< Number in the group; of send and recv, per (sender, receiver, tag).
  Operation operation = Operation::barrier;     ///< See `ops`.
  DType dtype = DType::u8;                      ///< Of the array that `bytes` counts.
  ReduceOp::Kind reduce = ReduceOp::Kind::sum;  ///< `sum` if nothing is reduced.
  std::int64_t bytes = 0;                       ///< Bytes of `in`; of `out` on ranks without input.
  int peer = -1;  ///< Root, peer or any_peer; -1 if the call has none.
  /// Above one: Coalesce or sendrecv. The entry describes the first collective, or else the first
  /// message.
  std::uint32_t ops = 1;
  State state = State::running;  ///< See `async`.
  bool async = false;            ///< An async call stays `running` until its Work is collected.
  std::chrono::steady_clock::time_point started{};  ///< Accurate to about 4 ms.
  std::string name{};                               ///< The first 16 bytes of CallOptions::name.
};

/// The last calls of a group, oldest first; at most 64 collectives and 64 sends and receives.
using Trace = std::vector<TraceEntry>;

/// "all_reduce #17 sum f32 4096 B done", one line.
std::string to_string(const TraceEntry& entry);

}  // namespace tutti
