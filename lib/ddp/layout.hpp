#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

using Ids = std::vector<std::size_t>;

/// Gradients start at multiples of this, in bytes.
inline constexpr std::int64_t alignment = 64;

/// Elements of an array with the padding behind it.
inline std::int64_t padded_numel(const TensorView& array) noexcept {
  const auto unit = alignment / static_cast<std::int64_t>(size_of(array.dtype));
  return (array.shape.numel() + unit - 1) / unit * unit;
}

/// The order of registration, reversed: about the order in which backward computes gradients.
Ids initial_order(std::size_t parameters);

/// Puts parameters into buckets of one dtype each, in the order given. The first bucket of each
/// dtype has options.first_bucket_cap bytes at most, the others bucket_cap; one parameter always
/// fits. Buckets are in the order in which they become full.
std::vector<Ids> assign_buckets(std::span<const Parameter> parameters, const Ids& order,
                                const ReducerOptions& options);

/// Collective. The order of rank 0: `arrived`, and behind it the parameters that are not in it, as
/// in initial_order().
Ids broadcast_order(ProcessGroup& group, const Ids& arrived, std::size_t parameters,
                    const ReducerOptions& options);

}  // namespace tutti::ddp
