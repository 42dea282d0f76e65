#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/reduce.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

// Two blocks fit in the first-level cache.
constexpr std::size_t block = 8192;

void call(const ReduceOp& op, const void* in, void* inout, std::size_t n, DType dtype) {
  try {
    op.function(in, inout, static_cast<std::int64_t>(n), dtype, op.context);
  } catch (const std::exception& thrown) {
    failf(Errc::backend, "the custom reduction threw: {}", thrown.what());
  } catch (...) {
    failf(Errc::backend, "the custom reduction threw something that is not a std::exception");
  }
}

}  // namespace

void fold_custom(DType dtype, const ReduceOp& op, void* out, std::span<const void* const> inputs,
                 std::size_t n) {
  const auto element = size_of(dtype);
  alignas(64) std::array<std::byte, block> first;
  alignas(64) std::array<std::byte, block> second;
  for (std::size_t i = 0; i < n * element; i += block) {
    const auto bytes = std::min(block, n * element - i);
    auto* lower = first.data();
    auto* higher = second.data();
    const auto load = [&](std::byte* to, std::size_t k) {
      std::memcpy(to, static_cast<const std::byte*>(inputs[k]) + i, bytes);
    };
    load(lower, 0);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      load(higher, k);
      call(op, lower, higher, bytes / element, dtype);
      std::swap(lower, higher);
    }
    std::memcpy(static_cast<std::byte*>(out) + i, lower, bytes);
  }
}

}  // namespace tutti::internal
