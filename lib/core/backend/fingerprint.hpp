#pragma once

#include <cstdint>

#include <tutti/backend/backend.hpp>

#include "values/hash.hpp"

namespace tutti::internal {

/// Adds row counts. A list of equal counts adds the same as the count alone, because ranks may use
/// either form.
constexpr void add(Hash& hash, const Rows& rows) noexcept {
  bool equal = true;
  for (const auto n : rows.list()) equal = equal && n == rows[0];
  if (!rows.listed() || (equal && !rows.list().empty())) {
    hash.add(static_cast<std::uint64_t>(rows[0]));
  } else {
    hash.add(~std::uint64_t{0});
    hash.add(rows.list());
  }
}

constexpr bool is_reduction(Operation o) noexcept {
  return o == Operation::all_reduce || o == Operation::reduce || o == Operation::reduce_scatter ||
         o == Operation::scan || o == Operation::exclusive_scan;
}

/// Adds exactly the parts that must be equal on all ranks, or on both sides of a send and recv.
/// Leaves out the scale of premul_sum, the function of a custom reduction (its address differs
/// between processes) and the counts of all_to_all.
inline void add(Hash& hash, const Op& op) noexcept {
  const auto kind = op.kind;
  const bool p2p = is_point_to_point(kind);
  const bool by_out =
      kind == Operation::scatter || kind == Operation::reduce_scatter || kind == Operation::recv;
  const auto& shape = by_out ? op.out.shape : op.in.shape;
  const auto dtype = by_out ? op.out.dtype : op.in.dtype;
  const auto reduce = is_reduction(kind) ? op.reduce.kind : ReduceOp::Kind::sum;
  const bool commutes = reduce == ReduceOp::Kind::custom && op.reduce.commutative;
  const bool by_rows = kind == Operation::all_gather || kind == Operation::all_gather_bounded ||
                       kind == Operation::gather || kind == Operation::reduce_scatter ||
                       kind == Operation::scatter || kind == Operation::all_to_all;
  // Adds the number of dimensions, so that a dimension cannot pass for a count or for part of the
  // name.
  const auto dims = p2p ? 0 : by_rows ? shape.row_dims().size() : shape.ndim();
  hash.add(static_cast<std::uint64_t>(kind == Operation::recv ? Operation::send : kind) |
           static_cast<std::uint64_t>(reduce) << 8 |
           static_cast<std::uint64_t>(op.reproducible) << 14 |
           static_cast<std::uint64_t>(commutes) << 15 | static_cast<std::uint64_t>(dtype) << 16 |
           static_cast<std::uint64_t>(dims) << 24 |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(p2p ? 0 : op.root)) << 32);
  if (p2p) {
    hash.add(static_cast<std::uint64_t>(shape.numel()));
  } else if (by_rows) {
    hash.add(shape.row_dims());
    if (kind != Operation::all_to_all) add(hash, op.rows);
  } else if (kind != Operation::barrier) {
    hash.add(shape.dims());
  }
}

/// Adds order_fixed and the name of the call to the hash of its operations, and returns the
/// fingerprint.
inline std::uint64_t finish_hash(Hash& hash, const Call& call) noexcept {
  if (call.order_fixed) hash.add(1);
  if (!call.name.empty()) hash.add(call.name);
  return hash.value();
}

}  // namespace tutti::internal
