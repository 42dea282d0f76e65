#pragma once

#include <tutti/ddp/bucket.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

// A hook without state is a function; set_hook() takes its name. Hooks with state have separate
// headers.

/// Reduces in the dtype of the gradients, as a reducer without a hook does, but the whole bucket in
/// one all_reduce with Bucket::op(). Its division is exact for a divisor that is a power of two.
Work all_reduce_hook(Bucket& bucket);

/// Leaves each rank's gradients as they are, undivided. On the wire: nothing. For measuring.
Work noop_hook(Bucket& bucket);

/// Casts the bucket to f16 or bf16, divides, reduces in that type, and casts back. On the wire:
/// half of the bytes of f32. A value beyond the range of f16 becomes infinite. Equal to the wrapper
/// around all_reduce_hook.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();  ///< The form for bf16.

/// Casts the bucket to f16 or bf16, calls `hook` with the cast bucket, and casts back when the Work
/// of `hook` has ended. The copy has 2 bytes per element. Gradients with elements of 2 bytes or
/// less go to `hook` unchanged.
/// @throws Error invalid_argument for a null hook; the new hook throws unsupported for complex
///         gradients, and for gradients on a device without ReducerOptions::arithmetic.
CommHook fp16_compress_wrapper(CommHook hook);
CommHook bf16_compress_wrapper(CommHook hook);  ///< The form for bf16.

}  // namespace ddp
}  // namespace tutti
