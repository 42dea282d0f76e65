#pragma once

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

// A hook without state is a function; set_hook() takes its name. Hooks with state are in headers of
// their own.

/// Reduces in the dtype of the gradients: the default. One all_reduce with Bucket::op(), whose
/// division is exact for a divisor that is a power of two.
Work all_reduce_hook(Bucket& bucket);

/// Leaves each rank's own gradients, undivided. On the wire: nothing. For measuring.
Work noop_hook(Bucket& bucket);

/// Casts the bucket to f16 or bf16, divides, reduces in that type, and casts back. On the wire:
/// half of the bytes of f32. A value beyond the range of f16 becomes infinite. Equal to the wrapper
/// around all_reduce_hook.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

/// Casts the bucket to f16 or bf16, calls `hook` with the cast bucket, and casts back when its Work
/// has ended. The copy has 2 bytes per element. Gradients of 2 bytes and less go to `hook` as they
/// are.
/// @throws Error invalid_argument for a null hook; the new hook throws unsupported for gradients on
///         a device, which the host cannot cast, and for complex ones.
CommHook fp16_compress_wrapper(CommHook hook);
CommHook bf16_compress_wrapper(CommHook hook);

}  // namespace ddp
}  // namespace tutti
