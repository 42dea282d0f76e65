#pragma once

#include <chrono>
#include <string_view>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/reduce_op.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Options of one call. A value type; borrows `name` until the call returns.
struct CallOptions {
  Stream stream{};      ///< The stream that produced the inputs and will use the outputs.
  Deadline deadline{};  ///< A moment: one limit for several calls. Replaces the group's timeout.
  /// A span, the usual limit: from when the call starts to wait. 0: the group's, unless there is a
  /// deadline; with both the earlier one ends the call. A function that makes several calls gives
  /// it to each of them. Negative: invalid_argument.
  std::chrono::nanoseconds timeout{};
  bool order_fixed = false;  ///< Reduce as a left fold over ranks 0..W-1, rounded once: the same
                             ///< bits for every backend, algorithm and message size.
  /// Allows avg of integers, which is not exact: it truncates toward zero.
  bool integer_avg = false;
  std::string_view name{};  ///< Compared between ranks and shown in errors and traces.
};

}  // namespace tutti
