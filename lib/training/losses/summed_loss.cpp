#include "losses/summed_loss.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "losses/elements.hpp"
#include "losses/options.hpp"
#include "losses/over_ranks.hpp"
#include "losses/staged.hpp"

namespace tutti::internal::losses {

using tutti::losses::Reduction;

Softmax softmax(std::span<const double> logits, std::size_t stride, std::size_t own,
                std::span<double> p) {
  double most = logits[0];
  for (std::size_t c = 1; c < p.size(); ++c) most = std::max(most, logits[c * stride]);
  double sum = 0;
  for (std::size_t c = 0; c < p.size(); ++c) sum += p[c] = std::exp(logits[c * stride] - most);
  double others = 0;  // Not 1 - p[own], because p[own] may round to 1.
  for (std::size_t c = 0; c < p.size(); ++c) {
    p[c] /= sum;
    if (c != own) others += p[c];
  }
  return {most + std::log(sum), others};
}

std::vector<double> weights_of(const Batch& batch, const Shape& shape) {
  if (!batch.weight) return std::vector<double>(static_cast<std::size_t>(shape.numel()), 1);
  if (!(batch.weight->shape == shape))
    failf(Errc::invalid_argument, "weights are {}, targets {}; they must have the same shape",
          to_string(batch.weight->shape), to_string(shape));
  return check_weights(*batch.weight);
}

tutti::losses::LossResult sum_loss(ProcessGroup* group, const SummedLoss& loss, const Batch& batch,
                                   const CallOptions& options, const MakeParts& make) {
  SummedParts parts;
  Staged staged(group, options);
  const auto compute = [&](std::span<double> mine) {
    auto here = batch;
    here.logits = staged.logits(batch.logits);
    here.targets = staged.on_host("targets", batch.targets);
    if (batch.weight) here.weight = staged.on_host("weights", *batch.weight);
    parts = make(here);
    mine[0] = std::accumulate(parts.each.begin(), parts.each.end(), 0.0);
    mine[1] = parts.count;
    mine[2] = parts.positives;
  };
  const auto words = loss.options + (batch.weight ? ", with weights" : "");
  const auto sums = sums_over_ranks(group, loss.name, words, 3, compute, options);
  constexpr double nothing = std::numeric_limits<double>::infinity();
  // Without positives the terms of the others are divided by 1.
  const double divisor = loss.reduction != Reduction::mean ? 1.0
                         : loss.normalize_by_positives     ? (sums[2] > 0 ? sums[2] : 1.0)
                         : sums[1] > 0                     ? sums[1]
                                                           : nothing;
  tutti::losses::LossResult result;
  result.loss = sums[0] / divisor;
  const double factor = scale_of(loss.grad_scale, group) / divisor;
  result.grad = staged.gradient([&](void* grad) {
    with_type(batch.logits.dtype, [&]<typename T>(T) {
      auto* out = static_cast<T*>(grad);
      for (const double g : parts.grad) *out++ = from_double<T>(factor * g);
    });
  });
  if (loss.reduction == Reduction::none) result.per_element = std::move(parts.each);
  return result;
}

}  // namespace tutti::internal::losses
