#pragma once

#include <cstddef>
#include <span>

// The signatures of kernels: reduce.hpp hands them out, each instruction set has its own.

namespace tutti::internal {

/// out[i] = op(a[i], b[i]), rounded to the dtype; out may be a or b. The signature is Gloo's.
using ReduceFn = void (*)(void* out, const void* a, const void* b, std::size_t n);

/// What fold() of reduce.hpp does, for one dtype and operation.
using FoldFn = void (*)(void* out, std::span<const void* const> inputs,
                        std::span<const double> scales, std::size_t n) noexcept;

}  // namespace tutti::internal
