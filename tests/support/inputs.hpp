#pragma once

#include <cstdint>
#include <vector>

#include <tutti/reduce_op.hpp>

#include "support/array.hpp"

namespace tutti::test {

/// The content of an input.
enum class Fill {
  bits,   ///< Any bit pattern (0 or 1 for booleans): for calls that only move data.
  exact,  ///< Small values: no order of reduction rounds or overflows.
  rough   ///< Fractions and full-range integers: only the left fold gives these bits.
};

/// The same numbers for the same arguments, different ones for each rank.
Array make_input(DType dtype, const Shape& shape, int rank, int size, Fill fill,
                 ReduceOp::Kind kind = ReduceOp::Kind::sum, std::uint64_t salt = 0);

/// make_input() of every rank.
std::vector<Array> make_inputs(DType dtype, const Shape& shape, int size, Fill fill,
                               ReduceOp::Kind kind = ReduceOp::Kind::sum, std::uint64_t salt = 0);

/// The scale of each rank for premul_sum.
std::vector<double> make_scales(int size, Fill fill);

/// The reduce op that this rank passes: its own scale for premul_sum.
ReduceOp op_of(ReduceOp::Kind kind, std::span<const double> scales, int rank);

/// A number that depends on all the arguments and looks random.
std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);

}  // namespace tutti::test
