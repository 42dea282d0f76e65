#include "execute.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "collectives/blocks.hpp"
#include "kernels/reduce.hpp"

// Every reduction is the left fold over ranks 0..W-1 in the accumulation type, rounded once.
// Element-wise operations are cut into one slice per rank: rank r reads slice r of all inputs and
// writes slice r of all outputs. No two ranks touch the same element, even in place, and nothing is
// copied twice.

namespace tutti::backend::local {
namespace {

using collectives::copy_bytes;
using collectives::cut;

constexpr std::size_t block_bytes = std::size_t{32} << 10;  // Stays in the first-level cache.

const std::byte* at(const ConstTensorView& v, std::int64_t row) {
  return static_cast<const std::byte*>(v.data) + static_cast<std::size_t>(row) * v.row_bytes();
}
std::byte* at(const TensorView& v, std::int64_t row) {
  return static_cast<std::byte*>(v.data) + static_cast<std::size_t>(row) * v.row_bytes();
}

/// A list with one entry per rank. Groups of up to 64 ranks need no allocation.
template <typename T>
using PerRank = fmt::basic_memory_buffer<T, 64>;

/// The inputs of all ranks of one operation.
class Inputs {
 public:
  Inputs(const Round& round, std::size_t k, int rank, int size)
      : round_(round), k_(k), rank_(rank), size_(size) {
    const bool scaled = op(0).reduce.kind == ReduceOp::Kind::premul_sum;
    for (int r = 0; r < size && scaled; ++r) scales_.push_back(op(r).reduce.scale);
  }
  const Op& op(int rank) const { return round_.collective(rank, k_); }

  /// out[0, n) = fold of the first `ranks` inputs from byte `offset` on.
  void fold(void* out, std::size_t offset, std::size_t n, int ranks) {
    data_.clear();
    for (int r = 0; r < ranks; ++r)
      data_.push_back(static_cast<const std::byte*>(op(r).in.data) + offset);
    const auto& mine = op(rank_);
    const std::span<const void* const> data(data_.data(), data_.size());
    if (mine.reduce.kind == ReduceOp::Kind::custom)
      return internal::fold_custom(mine.in.dtype, mine.reduce, out, data, n);
    internal::fold(mine.in.dtype, mine.reduce.kind, out, data,
                   {scales_.data(), std::min(scales_.size(), data_.size())}, n);
  }
  void fold(void* out, std::size_t offset, std::size_t n) { fold(out, offset, n, size_); }

 private:
  const Round& round_;
  std::size_t k_;
  int rank_;
  int size_;
  PerRank<const void*> data_;
  PerRank<double> scales_;  // Empty unless the inputs are scaled.
};

/// Calls fn(byte offset, elements) for every block of this rank's slice.
template <typename Fn>
void for_blocks(const ConstTensorView& v, int rank, int size, const Fn& fn) {
  const auto r = static_cast<std::size_t>(rank);
  const auto parts = static_cast<std::size_t>(size);
  const auto end = cut(v.bytes(), parts, r + 1);
  for (auto at = cut(v.bytes(), parts, r); at < end; at += block_bytes)
    fn(at, std::min(block_bytes, end - at) / size_of(v.dtype));
}

void all_reduce(Inputs& in, int rank, int size) {
  const auto& first = in.op(0);
  for_blocks(first.in, rank, size, [&](std::size_t offset, std::size_t n) {
    auto* out = static_cast<std::byte*>(first.out.data) + offset;
    in.fold(out, offset, n);
    for (int r = 1; r < size; ++r)
      copy_bytes(static_cast<std::byte*>(in.op(r).out.data) + offset, out,
                 n * size_of(first.in.dtype));
  });
}

void reduce(Inputs& in, int rank, int size) {
  const auto& root = in.op(in.op(0).root);
  for_blocks(root.in, rank, size, [&](std::size_t offset, std::size_t n) {
    in.fold(static_cast<std::byte*>(root.out.data) + offset, offset, n);
  });
}

/// Computes the last rank's output first: in place, an output then overwrites only inputs that are
/// no longer needed.
void scan(Inputs& in, int rank, int size, bool exclusive) {
  const auto dtype = in.op(0).in.dtype;
  for_blocks(in.op(0).in, rank, size, [&](std::size_t offset, std::size_t n) {
    for (int r = size - 1; r >= 0; --r) {
      auto* out = static_cast<std::byte*>(in.op(r).out.data) + offset;
      const int ranks = exclusive ? r : r + 1;
      const auto kind = in.op(0).reduce.kind;
      if (ranks != 0)
        in.fold(out, offset, n, ranks);
      else if (kind != ReduceOp::Kind::custom)  // A custom reduction has no known identity.
        internal::fill_identity(dtype, kind, out, n);
    }
  });
}

void reduce_scatter(Inputs& in, int rank) {
  const auto& mine = in.op(rank);
  const auto skip = static_cast<std::size_t>(mine.rows.offset(rank)) * mine.in.row_bytes();
  in.fold(mine.out.data, skip, static_cast<std::size_t>(mine.out.shape.numel()));
}

void gather(const Inputs& in, const Op& mine, int size) {
  std::int64_t row = 0;
  for (int r = 0; r < size; ++r) {
    const auto& from = in.op(r).in;
    copy_bytes(at(mine.out, row), from.data, from.bytes());
    row += mine.rows[r];
  }
}

void all_to_all(const Inputs& in, const Op& mine, int rank, int size) {
  std::int64_t row = 0;
  for (int r = 0; r < size; ++r) {
    const auto& theirs = in.op(r);
    const auto bytes = static_cast<std::size_t>(mine.rows[r]) * mine.out.row_bytes();
    if (bytes != 0)
      copy_bytes(at(mine.out, row), at(theirs.in, theirs.send_rows.offset(rank)), bytes);
    row += mine.rows[r];
  }
}

}  // namespace

void execute(const Round& round, std::size_t k, int rank, int size) {
  Inputs in(round, k, rank, size);
  const auto& mine = in.op(rank);
  switch (mine.kind) {
    case Operation::all_reduce:
      return all_reduce(in, rank, size);
    case Operation::reduce:
      return reduce(in, rank, size);
    case Operation::scan:
      return scan(in, rank, size, false);
    case Operation::exclusive_scan:
      return scan(in, rank, size, true);
    case Operation::reduce_scatter:
      return reduce_scatter(in, rank);
    case Operation::broadcast:
      return copy_bytes(mine.out.data, in.op(mine.root).in.data, mine.out.bytes());
    case Operation::all_gather:
    case Operation::all_gather_bounded:
      return gather(in, mine, size);
    case Operation::gather:
      if (rank == mine.root) gather(in, mine, size);
      return;
    case Operation::scatter: {
      const auto& root = in.op(mine.root);
      if (mine.out.bytes() != 0)
        copy_bytes(mine.out.data, at(root.in, mine.rows.offset(rank)), mine.out.bytes());
      return;
    }
    case Operation::all_to_all:
      return all_to_all(in, mine, rank, size);
    case Operation::barrier:
    case Operation::send:
    case Operation::recv:
    case Operation::recv_any:
      return;  // Entering the round was the barrier.
  }
}

}  // namespace tutti::backend::local
