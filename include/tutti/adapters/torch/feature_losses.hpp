#pragma once

#include <ATen/core/Tensor.h>

#include <tutti/adapters/torch/detail/feature_terms.hpp>

// The losses of <tutti/losses/{clip,siglip,sup_con}.hpp> over torch's tensors and operators, on any
// device that the group and torch have. docs/feature-losses.md.

namespace tutti::libtorch {

// Each function returns the loss over the rows of all ranks [], the same on every rank: f64 for f64
// features, otherwise f32. Gradients reach the features, `scale` and `bias`.
//
// Features are [N_r, D], f64, f32, f16 or bf16, finite, on the group's device, and rows have a
// length of at most 1e15 (1e140 in f64); N_r may be 0. f16 and bf16 travel as they are. Logits and
// products are f64 for f64 features, otherwise f32; sums over rows are f64. `scale` and `bias` are
// tensors of one number, the same on all ranks; their gradients are as FeatureResult's
// (losses/features.hpp): the same on every rank, with GradScale::sum the derivative itself.
// Gradients of features have the factor of `grad_scale`.
//
// Each rank takes its own rows, tile by tile, and computes the logits a second time for gradients;
// no array has an element for each pair. Ranks with more rows take longer. On the wire, each rank
// sends to all about 200 bytes, its features (sup_con_loss: and labels), and 16 bytes for each row
// (not siglip_loss); then three numbers are summed. The forward computes the gradients, if any
// rank records one, and the graph keeps them in the dtype of products; the backward multiplies them
// by the incoming gradient, then rounds to the inputs' dtypes, and sends nothing. A second
// derivative is Error unsupported.
//
// On 1 to 4 ranks results agree to 1e-12 in f64, but not in all bits: at::mm may add in an order
// that depends on shapes. losses::Clip and its siblings promise the bits, on the host.
//
// Errors are on every rank: invalid_argument where the arguments are not valid or torch throws when
// it reads them, otherwise mismatch, which names a rank and its reason or both sides of a
// difference.

/// The loss of losses::Clip: with logits scale (anchor_i . candidate_j), half the sum of the mean
/// cross-entropies of rows and of columns.
inline at::Tensor clip_loss(ProcessGroup& group, const at::Tensor& anchors,
                            const at::Tensor& candidates, const at::Tensor& scale,
                            const FeatureLossOptions& options = {}) {
  const detail::FeatureArguments of{"clip_loss", {anchors, candidates}, 2, scale};
  return detail::feature_loss(group, of, options, detail::clip_terms);
}

/// The loss of losses::SigLip: with logits scale (anchor_i . candidate_j) + bias, the mean over i
/// of the sum over j of log(1 + exp(-x_ij)) where i = j, otherwise log(1 + exp(x_ij)).
inline at::Tensor siglip_loss(ProcessGroup& group, const at::Tensor& anchors,
                              const at::Tensor& candidates, const at::Tensor& scale,
                              const at::Tensor& bias, const FeatureLossOptions& options = {}) {
  const detail::FeatureArguments of{"siglip_loss", {anchors, candidates}, 2, scale, bias};
  return detail::feature_loss(group, of, options, detail::sig_lip_terms);
}

/// The loss of losses::SupCon, and NT-Xent if each label has two rows. `labels`: i64 [N_r]. `scale`
/// is 1 / temperature.
inline at::Tensor sup_con_loss(ProcessGroup& group, const at::Tensor& features,
                               const at::Tensor& labels, const at::Tensor& scale,
                               const FeatureLossOptions& options = {}) {
  const detail::FeatureArguments of{"sup_con_loss", {features}, 1, scale, {}, labels};
  return detail::feature_loss(group, of, options, detail::sup_con_terms);
}

}  // namespace tutti::libtorch
