#pragma once

#include <chrono>
#include <string_view>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/reduce_op.hpp>

namespace [[gnu::visibility("default")]] tutti {

class Memory;

/// Options of one call. A value type; borrows `name` until the function returns.
struct CallOptions {
  Stream stream{};  ///< The stream that produced the inputs and will use the outputs.
  /// A moment at which the call gives up; calls may share it. Default: not set. If set, the group's
  /// timeout does not apply.
  Deadline deadline{};
  /// A span, the usual limit. A blocking call counts it from when it starts to wait, an async call
  /// from when it is issued. 0: the group's timeout, unless `deadline` is set. If both are set, the
  /// earlier one ends the call. A function that makes several calls gives each the full timeout.
  /// Negative: Error invalid_argument.
  std::chrono::nanoseconds timeout{};
  /// Reduces as a left fold over ranks 0..W-1 in the accumulation type (f32 for half types),
  /// rounded once to the result: the same bits for every backend, algorithm and message size.
  /// Ignored by calls that do not reduce.
  bool order_fixed = false;
  /// Adds floats so that the bits of the sum depend on the addends alone: not on their order, on
  /// the backend, or on the number of bytes. For sum, avg and premul_sum: each addend is rounded to
  /// a multiple of a unit, at most 2^-32 (f64: 2^-64) of the largest addend, and the exact sum of
  /// the multiples is rounded once; avg divides it after that. No partial sum overflows, NaNs are
  /// canonical, and a sum of zeros is +0, also in a group of one rank. Reductions of integers, min,
  /// max and bitwise operations do not change. Products of floats and custom reductions: Error
  /// unsupported. At most 4095 ranks. Ignored by calls that do not reduce. See
  /// docs/reproducibility.md.
  bool reproducible = false;
  /// Allows avg of integers, which is not exact: it truncates toward zero. Ignored by calls that do
  /// not reduce.
  bool integer_avg = false;
  std::string_view name{};  ///< Compared between ranks and shown in errors and traces.
  /// Memory of the arrays that the call returns, which it outlives; null: the group's. Ignored by
  /// calls that return none.
  Memory* memory = nullptr;
};

}  // namespace tutti
