#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

using Ids = std::vector<std::size_t>;

/// Alignment of the gradients in a bucket, in bytes.
inline constexpr std::int64_t alignment = 64;

/// Returns the number of elements of an array plus the padding after it, in elements.
inline std::int64_t padded_numel(const TensorView& array) noexcept {
  const auto unit = alignment / static_cast<std::int64_t>(size_of(array.dtype));
  return (array.shape.numel() + unit - 1) / unit * unit;
}

/// Returns the ids in reverse order of registration, approximately the order of backward.
Ids initial_order(std::size_t parameters);

/// Assigns parameters in the given order to buckets of one dtype each. The first bucket of a dtype
/// has at most options.first_bucket_cap bytes, the later ones bucket_cap; a larger parameter gets a
/// bucket alone. Buckets are sorted by the position of their last parameter.
std::vector<Ids> assign_buckets(std::span<const Parameter> parameters, const Ids& order,
                                const ReducerOptions& options);

/// Collective. Returns rank 0's order: the ids in `arrived`, then all other ids as in
/// initial_order().
Ids broadcast_order(ProcessGroup& group, const Ids& arrived, std::size_t parameters,
                    const ReducerOptions& options);

}  // namespace tutti::ddp
