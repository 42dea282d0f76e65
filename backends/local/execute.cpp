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

/// The part of an operation that one rank executes: slice `part` of `parts` of the outputs of ranks
/// `first` to `end` - 1.
struct Share {
  int first;
  int end;
  std::size_t part;
  std::size_t parts;
};

/// The inputs of all ranks of one operation.
class Inputs {
 public:
  Inputs(const Entered& call, std::size_t k, int rank, int size)
      : call_(call), k_(k), rank_(rank), size_(size) {
    const bool scaled = !call.inlined() && mine().reduce.kind == ReduceOp::Kind::premul_sum;
    for (int r = 0; r < size && scaled; ++r) scales_.push_back(op(r).reduce.scale);
  }
  /// In an inlined call only this rank's.
  const Op& op(int rank) const { return call_.collective(rank, k_); }
  const Op& mine() const { return op(rank_); }
  const std::byte* data(int rank) const {
    return call_.inlined() ? call_.of(rank).data.data()
                           : static_cast<const std::byte*>(op(rank).in.data);
  }
  Share share() const {
    if (call_.inlined()) return {rank_, rank_ + 1, 0, 1};
    return {0, size_, static_cast<std::size_t>(rank_), static_cast<std::size_t>(size_)};
  }

  /// out[0, n) = fold of the first `ranks` inputs from byte `offset` on.
  void fold(void* out, std::size_t offset, std::size_t n, int ranks) {
    data_.clear();
    for (int r = 0; r < ranks; ++r) data_.push_back(data(r) + offset);
    const std::span<const void* const> data(data_.data(), data_.size());
    if (mine().reduce.kind == ReduceOp::Kind::custom)
      return internal::fold_custom(mine().in.dtype, mine().reduce, out, data, n);
    internal::fold(mine().in.dtype, mine().reduce.kind, out, data,
                   {scales_.data(), std::min(scales_.size(), data_.size())}, n);
  }
  void fold(void* out, std::size_t offset, std::size_t n) { fold(out, offset, n, size_); }

 private:
  const Entered& call_;
  std::size_t k_;
  int rank_;
  int size_;
  PerRank<const void*> data_;
  PerRank<double> scales_;  // Empty unless the inputs are scaled.
};

std::byte* output(const Inputs& in, int rank) {
  return static_cast<std::byte*>(in.op(rank).out.data);
}

/// Calls fn(byte offset, elements) for every block of a share of arrays like `v`.
template <typename Fn>
void for_blocks(const ConstTensorView& v, const Share& share, const Fn& fn) {
  const auto end = cut(v.bytes(), share.parts, share.part + 1);
  for (auto at = cut(v.bytes(), share.parts, share.part); at < end; at += block_bytes)
    fn(at, std::min(block_bytes, end - at) / size_of(v.dtype));
}

void all_reduce(Inputs& in) {
  const auto share = in.share();
  for_blocks(in.mine().in, share, [&](std::size_t offset, std::size_t n) {
    auto* out = output(in, share.first) + offset;
    in.fold(out, offset, n);
    for (int r = share.first + 1; r < share.end; ++r)
      copy_bytes(output(in, r) + offset, out, n * size_of(in.mine().in.dtype));
  });
}

void broadcast(Inputs& in) {
  const auto share = in.share();
  const auto& mine = in.mine();
  const auto* const from = in.data(mine.root);
  for_blocks(mine.out, share, [&](std::size_t offset, std::size_t n) {
    for (int r = share.first; r < share.end; ++r)
      copy_bytes(output(in, r) + offset, from + offset, n * size_of(mine.out.dtype));
  });
}

void reduce(Inputs& in) {
  const auto share = in.share();
  const int root = in.mine().root;
  if (root < share.first || root >= share.end) return;
  for_blocks(in.mine().in, share, [&](std::size_t offset, std::size_t n) {
    in.fold(output(in, root) + offset, offset, n);
  });
}

/// Computes the last rank's output first: in place, an output then overwrites only inputs that are
/// no longer needed.
void scan(Inputs& in, bool exclusive) {
  const auto share = in.share();
  const auto kind = in.mine().reduce.kind;
  for_blocks(in.mine().in, share, [&](std::size_t offset, std::size_t n) {
    for (int r = share.end - 1; r >= share.first; --r) {
      auto* out = output(in, r) + offset;
      const int ranks = exclusive ? r : r + 1;
      if (ranks != 0)
        in.fold(out, offset, n, ranks);
      else if (kind != ReduceOp::Kind::custom)  // A custom reduction has no known identity.
        internal::fill_identity(in.mine().in.dtype, kind, out, n);
    }
  });
}

void reduce_scatter(Inputs& in, int rank) {
  const auto& mine = in.mine();
  const auto skip = static_cast<std::size_t>(mine.rows.offset(rank)) * mine.in.row_bytes();
  in.fold(mine.out.data, skip, static_cast<std::size_t>(mine.out.shape.numel()));
}

void gather(const Inputs& in, int size) {
  const auto& mine = in.mine();
  std::int64_t row = 0;
  for (int r = 0; r < size; ++r) {
    // Only the rank itself knows its count in a bounded gather.
    const auto bytes = mine.kind == Operation::all_gather_bounded
                           ? in.op(r).in.bytes()
                           : static_cast<std::size_t>(mine.rows[r]) * mine.out.row_bytes();
    copy_bytes(at(mine.out, row), in.data(r), bytes);
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

/// The bytes of the longest array of all ranks; empty if a rank does not know it, or if ranks need
/// more of their peers than arrays.
std::optional<std::size_t> longest_input(const Op& op, int size) {
  const auto kind = op.reduce.kind;
  switch (op.kind) {
    case Operation::barrier:
      return 0;
    case Operation::broadcast:
      return op.in.bytes();
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::scan:
    case Operation::exclusive_scan:
    case Operation::reduce_scatter:
      // The function of a custom reduction may throw on one rank alone; each rank has its scale.
      if (kind == ReduceOp::Kind::custom || kind == ReduceOp::Kind::premul_sum) return {};
      return op.in.bytes();
    case Operation::all_gather:
    case Operation::gather: {
      std::int64_t rows = 0;
      for (int r = 0; r < size; ++r) rows = std::max(rows, op.rows[r]);
      return static_cast<std::size_t>(rows) * op.in.row_bytes();
    }
    case Operation::scatter:
      return static_cast<std::size_t>(op.rows.offset(size)) * op.out.row_bytes();
    default:
      return {};
  }
}

}  // namespace

std::optional<std::span<const std::byte>> inlined_array(std::span<const Op> ops, int rank,
                                                        int size) {
  // Counts collectives alone: the number of messages beside them differs between ranks.
  const auto is_collective = [](const Op& op) { return !is_point_to_point(op.kind); };
  const auto only = std::ranges::find_if(ops, is_collective);
  if (only == ops.end() || std::any_of(only + 1, ops.end(), is_collective)) return {};
  const auto& op = *only;
  const auto longest = longest_input(op, size);
  if (!longest || *longest > inline_bytes) return {};
  const bool from_root = op.kind == Operation::broadcast || op.kind == Operation::scatter;
  if (op.kind == Operation::barrier || (from_root && rank != op.root))
    return std::span<const std::byte>();
  return std::span(static_cast<const std::byte*>(op.in.data), op.in.bytes());
}

void execute(const Entered& call, std::size_t k, int rank, int size) {
  Inputs in(call, k, rank, size);
  const auto& mine = in.mine();
  switch (mine.kind) {
    case Operation::all_reduce:
      return all_reduce(in);
    case Operation::reduce:
      return reduce(in);
    case Operation::scan:
      return scan(in, false);
    case Operation::exclusive_scan:
      return scan(in, true);
    case Operation::reduce_scatter:
      return reduce_scatter(in, rank);
    case Operation::broadcast:
      return broadcast(in);
    case Operation::all_gather:
    case Operation::all_gather_bounded:
      return gather(in, size);
    case Operation::gather:
      if (!call.inlined())
        copy_bytes(at(in.op(mine.root).out, mine.rows.offset(rank)), mine.in.data, mine.in.bytes());
      else if (rank == mine.root)
        gather(in, size);
      return;
    case Operation::scatter: {
      const auto skip = static_cast<std::size_t>(mine.rows.offset(rank)) * mine.out.row_bytes();
      if (mine.out.bytes() != 0)
        copy_bytes(mine.out.data, in.data(mine.root) + skip, mine.out.bytes());
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
