#pragma once

#include <span>

#include <tutti/dtype.hpp>

// The definition of reproducible sums, in integers.

namespace tutti::test {

/// The numbers of a float dtype.
struct FloatFormat {
  int digits;          ///< With the hidden bit.
  int least_exponent;  ///< Of normal numbers.
};
FloatFormat format_of(DType dtype);

/// Faults of a wrong implementation.
enum class Mutant {
  none,
  truncates_addends,
  rounds_half_up,
  doubles_unit,
  bins_of_one,
  keeps_zero_sign
};

/// The sum by docs/reproducibility.md, a number of the dtype or beyond its largest. `addends`: of
/// the accumulation type.
double reproducible_sum(DType dtype, std::span<const double> addends, Mutant mutant = Mutant::none);

}  // namespace tutti::test
