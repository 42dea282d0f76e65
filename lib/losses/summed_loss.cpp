#include "losses/summed_loss.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "group/refuse.hpp"
#include "losses/elements.hpp"
#include "losses/global_batch.hpp"
#include "losses/staged.hpp"

namespace tutti::internal::losses {

tutti::losses::LossResult sum_loss(ProcessGroup* group, const SummedLoss& loss,
                                   const ConstTensorView& logits, const ConstTensorView& targets,
                                   const CallOptions& call, const MakeParts& make) {
  SummedParts parts;
  Staged staged(group, call);
  const auto refused = problem_of([&] {
    const auto logits_here = staged.logits(logits);
    parts = make(logits_here, staged.on_host("targets", targets));
  });
  const double mine[] = {std::accumulate(parts.each.begin(), parts.each.end(), 0.0), parts.mean_by,
                         parts.positive};
  const auto sums = sums_over_ranks(group, loss.name, loss.options, refused, mine, call);
  constexpr double nothing = std::numeric_limits<double>::infinity();
  const double divisor = loss.reduction == Reduction::mean ? (sums[1] > 0 ? sums[1] : nothing)
                         : loss.reduction == Reduction::mean_positive ? std::max(1.0, sums[2])
                                                                      : 1.0;
  tutti::losses::LossResult result;
  result.loss = sums[0] / divisor;
  const double factor = scale_of(loss.scale, group) / divisor;
  result.grad = staged.gradient([&](void* grad) {
    with_type(logits.dtype, [&]<typename T>(T) {
      auto* out = static_cast<T*>(grad);
      for (const double g : parts.grad) *out++ = from_double<T>(factor * g);
    });
  });
  if (loss.reduction == Reduction::none) result.each = std::move(parts.each);
  return result;
}

}  // namespace tutti::internal::losses
