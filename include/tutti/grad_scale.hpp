#pragma once

#include <cstdint>

namespace [[gnu::visibility("default")]] tutti {

/// The factor on the gradient of this rank's rows, chosen for the reducer downstream. A reducer
/// combines the parameters' gradients of the W ranks: it averages (DDP's default) or adds.
///
/// G_s is the gradient of rank s's loss with respect to the rows of all ranks.
/// autograd::all_gather_rows requires a scale, because libraries differ by a factor of W. The
/// losses of tutti/losses default to `sum`; there all ranks have the same loss, so `local_slice`
/// equals `mean`. docs/gradients.md.
enum class GradScale : std::uint8_t {
  /// This rank's rows of the sum over s of G_s: the gradient of the sum of all ranks' losses. If
  /// all ranks have the same loss (tutti/losses), that is W times its gradient: for a reducer that
  /// averages. If the ranks' losses add up to the global loss: for a reducer that adds.
  sum,
  /// `sum` / W. In a loss: the gradient itself. For a reducer that adds.
  mean,
  /// This rank's rows of its own G, without communication. Correct only if all ranks have the same
  /// loss; then it equals `mean`. For a reducer that adds.
  local_slice,
};

}  // namespace tutti
