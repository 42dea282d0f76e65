#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tutti/backend/backend.hpp>
#include <tutti/call_options.hpp>

namespace tutti::internal {

/// The properties of the group that arguments are checked against.
struct Bounds {
  int rank = 0;
  int size = 1;
  Device device{};            ///< The device on which arrays must be.
  bool reproducible = false;  ///< GroupOptions::reproducible.
};

/// True if a reduction is a reproducible sum by the options of the call or of the group. False for
/// those that are reproducible by themselves. @throws Error unsupported for others.
bool sums_reproducibly(DType dtype, ReduceOp::Kind kind, const Bounds& b, const CallOptions& o);

/// Checks dtype, size, address and device of an array. Errors call the array `what`. @throws Error
/// invalid_argument, count_overflow.
void check_array(const char* what, const ConstTensorView& array, const Device& device);

/// True if the two arrays share no byte.
inline bool disjoint(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes == 0 || b_bytes == 0 || x >= y + b_bytes || y >= x + a_bytes;
}

/// @throws Error invalid_argument if the arrays of `verb`, which has no in-place form, overlap.
void check_apart(const ConstTensorView& in, const TensorView& out, std::string_view verb);

/// @throws Error invalid_argument for a negative timeout.
void check_timeout(const CallOptions& options);

/// Checks one operation and completes it: sets rows that were not given, and empties arrays that
/// this rank does not use. @throws Error invalid_argument, count_overflow, unsupported.
void validate(Op& op, const Bounds& bounds, const CallOptions& options);

}  // namespace tutti::internal
