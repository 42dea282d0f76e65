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

// Losses whose rows or elements know nothing of each other: sums, of which each rank has its part.

namespace tutti::internal::losses {

/// log(1 + e^z).
inline double softplus(double z) {
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

/// The logarithm of the sum of exponentials of one row's logits, which lie `stride` apart, and what
/// the softmax p gives to classes other than `own`.
struct Softmax {
  double log_sum, others;
};
Softmax softmax(std::span<const double> logits, std::size_t stride, std::size_t own,
                std::span<double> p);

/// Of this rank: the loss and the gradient of each element, before any reduction.
struct SummedParts {
  std::vector<double> each;
  std::vector<double> grad;
  double mean_by = 0;   ///< What Reduction::mean divides by, once it is added up; not below 0.
  double positive = 0;  ///< How many mean_positive counts.
};

struct SummedLoss {
  std::string_view name{};
  std::string options{};  ///< What all ranks must have alike, in words.
  tutti::losses::Reduction reduction{};
  tutti::losses::GradScale scale{};
};

/// Given the arrays on the host.
using MakeParts =
    std::function<SummedParts(const ConstTensorView& logits, const ConstTensorView& targets)>;

/// Collective: adds up what all ranks have and scales this rank's gradient. What `parts` throws is
/// an error on every rank. Where there is nothing to divide by, loss and gradient are 0.
tutti::losses::LossResult sum_loss(ProcessGroup* group, const SummedLoss& loss,
                                   const ConstTensorView& logits, const ConstTensorView& targets,
                                   const CallOptions& call, const MakeParts& parts);

}  // namespace tutti::internal::losses
