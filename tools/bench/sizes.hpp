#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/dtype.hpp>

namespace tutti::tool {

/// One size of a sweep: the total buffer S of nccl-tests, in bytes or in elements.
struct Size {
  std::int64_t value = 0;
  bool elements = false;
  std::string token{};  ///< The user's text for it, for errors.
  bool ranged = false;  ///< Part of a range.
};

/// Reads "8:1G", "1K:64M:x4", "1M:16M:+1M", "4K,1M,100M", "100e".
///
/// K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024, KB, MB, GB, TB of 1000; B or no unit is
/// bytes, e is elements. A range doubles by default, and ends at or below its maximum.
/// @throws Failure usage, naming the token.
std::vector<Size> parse_sizes(std::string_view spec);

/// @throws Failure usage if it does not fit in 63 bits.
std::int64_t bytes_of(const Size& size, DType dtype);

/// The syntax in a few lines, for --help-sizes.
extern const std::string_view size_syntax;

}  // namespace tutti::tool
