#include <tutti/losses/recall_at_quantile.hpp>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/global_batch.hpp"
#include "losses/options.hpp"
#include "losses/order_statistics.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;
using internal::losses::is_valid;
using internal::losses::Logistic;
using internal::losses::word;

}  // namespace

RecallAtQuantile::RecallAtQuantile(const Options& options)
    : RankingLoss("recall_at_quantile", options.classes, options.temperature, options.ignore_index,
                  options.pool),
      options_(options) {
  if (!(options.quantile > 0 && options.quantile < 1))
    failf(Errc::invalid_argument, "{}: quantile is {}; it must be above 0 and below 1", name(),
          options.quantile);
  internal::losses::check_budget(name(), options.budget, options.interpolation);
}

LossResult RecallAtQuantile::compute(ProcessGroup* group, const Batch& batch,
                                     const CallOptions& options) try {
  const auto& o = options_;
  const double temperature = this->temperature();
  auto pool = internal::losses::GlobalBatch::collect(
      group, batch,
      {.loss = name(),
       .options = fmt::format(
           "classes {}, quantile {}, temperature {}, interpolation {}, reduction {}, "
           "grad_scale {}, ignore_index {}{}",
           o.classes, o.quantile, temperature, word(o.interpolation), word(o.reduction),
           word(o.grad_scale), o.ignore_index, o.budget == Budget::weight ? ", budget weight" : ""),
       .classes = o.classes,
       .ignore_index = o.ignore_index},
      queue(), options);
  const auto classes = static_cast<std::size_t>(o.classes);
  auto result = internal::losses::start_result(o.classes);

  std::vector<double> weights;
  for (std::size_t i = 0; o.budget == Budget::weight && i < pool.rows(); ++i)
    weights.push_back(pool.weight(i));
  std::vector<internal::losses::Quantiles> lists(classes);
  for (std::size_t c = 0; c < classes; ++c) {
    if (pool.total_positive(c).rows == 0)
      result.status[c] = ClassStatus::no_positives;
    else if (!(pool.positive_mass(c).rows > 0))
      result.status[c] = ClassStatus::no_weight;
    if (!is_valid(result, c)) continue;
    lists[c] = {pool.scores(c), pool.total().rows, {1 - o.quantile}, weights};
  }
  const auto add_up = [&](auto numbers) { pool.add_up(numbers); };
  const auto found = internal::losses::quantiles_of(
      lists, {o.interpolation, o.budget, pool.in_float()}, add_up, add_up);

  std::vector<double> recalled(classes);
  std::vector<double> grad(pool.own() * classes);
  for (std::size_t c = 0; c < classes; ++c) {
    if (!is_valid(result, c)) continue;
    const double threshold = found[c][0];
    const auto scores = pool.scores(c);
    const double mass = pool.positive_mass(c).rows;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (!pool.is_positive(i, c)) continue;
      const Logistic l((scores[i] - threshold) / temperature);
      const double w = pool.weight(i);
      recalled[c] += w * l.value;
      if (pool.is_own(i))
        grad[(i - pool.first_own()) * classes + c] = -w * l.slope() / (mass * temperature);
    }
  }
  pool.add_up(recalled);
  const double share = internal::losses::class_weight(o.reduction, result);
  for (std::size_t c = 0; c < classes; ++c) {
    if (!is_valid(result, c)) continue;
    result.per_class[c] = 1 - recalled[c] / pool.positive_mass(c).rows;
    result.loss += share * result.per_class[c];
  }
  const double scale = share * pool.scale_of(o.grad_scale);
  for (double& value : grad) value *= scale;
  result.grad = pool.gradient(grad);
  pool.commit();
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
