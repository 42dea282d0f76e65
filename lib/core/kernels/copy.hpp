#pragma once

#include <cstddef>

namespace tutti::internal {

/// Bytes of the last-level cache, which all cores share.
[[gnu::visibility("default")]] std::size_t last_level_cache() noexcept;

/// Copies `bytes` between arrays that do not overlap, with stores that do not read the target into
/// the cache first. Faster than memcpy if the target is not used again before other data has
/// replaced it in the cache; slower otherwise. The bytes are visible to other threads like those of
/// memcpy. On processors other than x86-64 it is memcpy.
[[gnu::visibility("default")]] void copy_past_cache(void* to, const void* from,
                                                    std::size_t bytes) noexcept;

}  // namespace tutti::internal
