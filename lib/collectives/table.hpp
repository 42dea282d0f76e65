#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/backend/backend.hpp>

namespace tutti::backend::gloo {

enum class Algorithm : std::uint8_t {
  direct,         ///< Everybody sends to everybody who needs it, at once.
  doubling,       ///< Recursive doubling: log2 W steps, each with the whole array.
  ring,           ///< The segmented ring; all_reduce: reduce_scatter, then all_gather.
  slices,         ///< A slice of the array per rank, reduced there in rank order.
  tree,           ///< A binomial tree.
  chain,          ///< Rank after rank, message by message.
  dissemination,  ///< log2 W steps of one byte.
};
std::string_view name_of(Algorithm algorithm) noexcept;

/// The choice for an operation that moves `bytes` (what `tutti bench` calls its size: the whole
/// array, all blocks together) between `size` ranks; equal on all of them.
Algorithm choose(Operation operation, std::int64_t bytes, int size, bool order_fixed) noexcept;

/// The bytes that choose() looks at; 0 where there is one algorithm only.
std::int64_t table_bytes(const Op& op) noexcept;

/// The table in words, a line per row.
std::string describe_table();

}  // namespace tutti::backend::gloo
