#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/reduce_fn.hpp"

// The vector kernels. Only there when the library is built with Highway.

namespace tutti::internal::simd {

/// What one instruction set offers. Null: the scalar kernel is as good, or the pair is undefined.
struct Kernels {
  std::int64_t target = 0;  ///< As Highway numbers them.
  std::array<std::array<ReduceFn, reduce_op_count>, dtype_count> reduce{};
  std::array<std::array<FoldFn, reduce_op_count>, dtype_count> fold{};
};

/// The best for this machine.
const Kernels& kernels() noexcept;

/// The name of its instruction set.
const char* target() noexcept;

/// For kernel_targets() and choose_kernel_target().
std::vector<std::string_view> targets();
void choose_target(std::string_view name);

}  // namespace tutti::internal::simd
