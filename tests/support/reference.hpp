#pragma once

#include <span>
#include <vector>

#include <tutti/reduce_op.hpp>

#include "support/array.hpp"

// The expected results of calls, computed element by element and rank by rank.

namespace tutti::test {

/// Whether the pair has a meaning at all, without a function of the caller's.
bool has_meaning(DType dtype, ReduceOp::Kind kind);

/// The reduce ops that have a meaning for a dtype.
std::vector<ReduceOp::Kind> kinds_of(DType dtype);

/// ((in0 op in1) op in2) ... in the accumulation type, rounded once. `scales`, of premul_sum, are
/// one per input.
Array reduce_in_order(ReduceOp::Kind kind, std::span<const Array> inputs,
                      std::span<const double> scales = {});

/// The reproducible sum of floats, for sum, avg and premul_sum.
Array reduce_reproducibly(ReduceOp::Kind kind, std::span<const Array> inputs,
                          std::span<const double> scales = {});

/// e with op(e, x) == x; 0 for avg.
Array identity(ReduceOp::Kind kind, DType dtype, const Shape& shape);

}  // namespace tutti::test
