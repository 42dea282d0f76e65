#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// Losses that are a sum of independent terms, one for each row or element.

namespace tutti::internal::losses {

using tutti::losses::Batch;

/// log(1 + e^z).
inline double softplus(double z) {
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

/// Of one row: the logarithm of the sum of the logits' exponentials, and the sum of the softmax
/// over the classes other than the row's own.
struct Softmax {
  double log_sum, others;
};
/// Writes the softmax of one row's logits, which lie `stride` elements apart, to p.
Softmax softmax(std::span<const double> logits, std::size_t stride, std::size_t own,
                std::span<double> p);

/// The loss of each row or element of this rank, and the gradient of each logit, before the
/// reduction.
struct SummedParts {
  std::vector<double> each;
  std::vector<double> grad;
  double count = 0;      ///< This rank's part of the divisor of Reduction::mean; 0 or more.
  double positives = 0;  ///< The same divisor with normalize_by_positives.
};

struct SummedLoss {
  std::string_view name{};
  std::string options{};  ///< The options in words, for comparison between ranks.
  tutti::losses::Reduction reduction{};
  GradScale grad_scale{};
  bool normalize_by_positives = false;
};

/// Computes this rank's terms from arrays on the host.
using MakeParts = std::function<SummedParts(const Batch& batch)>;

/// Collective. Adds the terms of all ranks and scales this rank's gradient. If `parts` throws,
/// every rank gets an Error; ranks of which only some have weights get Error mismatch. If the
/// divisor is 0, loss and gradient are 0. A null group means a single process.
tutti::losses::LossResult sum_loss(ProcessGroup* group, const SummedLoss& loss, const Batch& batch,
                                   const CallOptions& options, const MakeParts& parts);

/// Returns the checked weights of the terms, which have the shape `shape`; 1 without weights.
/// @throws Error invalid_argument.
std::vector<double> weights_of(const Batch& batch, const Shape& shape);

}  // namespace tutti::internal::losses
