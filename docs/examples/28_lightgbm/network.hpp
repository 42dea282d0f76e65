#pragma once

// The two functions that LightGBM asks of a network, over a process group.

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tutti/tutti.hpp>

namespace network {

/// LightGBM's function that combines two blocks of `bytes` bytes: inout = inout op in. It knows
/// what the elements are: histogram entries, or candidate splits that it compares by their gain.
using Reducer = void (*)(const char* in, char* inout, int element_bytes, std::int32_t bytes);

/// The network of one thread: LightGBM passes no context, and keeps its own network per thread.
struct State {
  tutti::ProcessGroup* group = nullptr;
  std::vector<char> scratch{};
  std::int64_t calls = 0;
  std::chrono::duration<double> seconds{};  // In calls of the group.
};
inline thread_local State state;

inline tutti::TensorView bytes(char* data, std::int64_t count) {
  return {data, tutti::DType::u8, tutti::Shape::vector(count)};
}

inline tutti::RowLayout blocks_of(const std::int32_t* lengths, int ranks) {
  return tutti::RowLayout(std::vector<std::int64_t>(lengths, lengths + ranks));
}

template <typename Call>
void timed(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  state.seconds += std::chrono::steady_clock::now() - begin;
  ++state.calls;
}

/// An Error of the group leaves through LightGBM's frames, as the errors of its own sockets do, and
/// its C functions return it. Both functions may throw for that reason.
///
/// out [lengths[rank]] = this rank's block of (op over ranks of in [sum lengths]). Combines in the
/// order of LightGBM's recursive halving, so that floating-point sums have the same bits.
inline void reduce_scatter(char* in, std::int32_t /*in_bytes*/, int element_bytes,
                           const std::int32_t* /*starts*/, const std::int32_t* lengths, int ranks,
                           char* out, std::int32_t /*out_bytes*/, const Reducer& reducer) {
  const auto blocks = blocks_of(lengths, ranks);
  const int rank = state.group->rank();
  const std::int64_t mine = blocks[rank];
  state.scratch.resize(static_cast<std::size_t>(mine * ranks));
  timed([&] {
    state.group->all_to_all(bytes(in, blocks.total()), bytes(state.scratch.data(), mine * ranks),
                            blocks, mine);
  });
  const auto combine = [&](char* inout, const char* with) {
    reducer(with, inout, element_bytes, static_cast<std::int32_t>(mine));
  };
  // As many ranks at the end as exceed a power of two are folded into their left neighbors.
  const auto nodes = std::bit_floor(static_cast<unsigned>(ranks));
  const int first_pair = 2 * static_cast<int>(nodes) - ranks;
  std::vector<char*> values;
  unsigned own = 0;
  for (int r = 0; r < ranks; ++r) {
    char* const block = state.scratch.data() + mine * r;
    if (r >= first_pair && (r - first_pair) % 2 == 1) {
      combine(values.back(), block);
    } else {
      values.push_back(block);
    }
    if (r == rank) own = static_cast<unsigned>(values.size()) - 1;
  }
  for (unsigned half = nodes / 2; half > 0; half /= 2) {
    for (unsigned i = 0; i < half; ++i) combine(values[own ^ i], values[own ^ i ^ half]);
  }
  if (mine > 0) std::memcpy(out, values[own], static_cast<std::size_t>(mine));
}

/// out [sum lengths] = all ranks' in [lengths[rank]]. `in` may be the beginning of `out`.
inline void all_gather(char* in, std::int32_t in_bytes, const std::int32_t* /*starts*/,
                       const std::int32_t* lengths, int ranks, char* out,
                       std::int32_t /*out_bytes*/) {
  const auto blocks = blocks_of(lengths, ranks);
  char* const own = out + blocks.offset(state.group->rank());
  if (in_bytes > 0) std::memmove(own, in, static_cast<std::size_t>(in_bytes));
  timed([&] { state.group->all_gather(bytes(own, in_bytes), bytes(out, blocks.total()), blocks); });
}

}  // namespace network
