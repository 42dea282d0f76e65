#include <tutti/losses/recall_at_quantile.hpp>

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "internal/fail.hpp"
#include "internal/losses/global_batch.hpp"
#include "internal/losses/order_statistics.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;

}  // namespace

RecallAtQuantile::RecallAtQuantile(const Options& options) : options_(options) {
  constexpr std::string_view loss = "recall_at_quantile";
  internal::losses::check_ranking_options(loss, options.classes, options.temperature,
                                          options.reduction);
  if (!(options.quantile > 0 && options.quantile < 1))
    failf(Errc::invalid_argument, "{}: quantile is {}; it must be between 0 and 1", loss,
          options.quantile);
}

LossResult RecallAtQuantile::operator()(ProcessGroup* group, const RankingBatch& batch,
                                        const CallOptions& call) const {
  const auto& o = options_;
  const internal::losses::LocalBatch own(
      group, batch,
      {.loss = "recall_at_quantile",
       .options =
           fmt::format("classes {}, quantile {}, temperature {}, interpolation {}, reduction {}, "
                       "scale {}, ignore_index {}",
                       o.classes, o.quantile, o.temperature, static_cast<int>(o.interpolation),
                       static_cast<int>(o.reduction), static_cast<int>(o.scale), o.ignore_index),
       .classes = o.classes,
       .ignore_index = o.ignore_index},
      call);
  const auto classes = static_cast<std::size_t>(o.classes);
  LossResult result;
  result.each.assign(classes, std::numeric_limits<double>::quiet_NaN());
  result.valid.assign(classes, 0);

  std::vector<internal::losses::Quantiles> lists(classes);
  for (std::size_t c = 0; c < classes; ++c) {
    if (own.total_positive(c) == 0) continue;
    result.valid[c] = 1;
    lists[c] = {own.scores(c), own.total(), {1 - o.quantile}};
  }
  const auto found =
      internal::losses::quantiles_of(lists, o.interpolation, own.in_float(),
                                     [&](std::span<std::int64_t> counts) { own.add_up(counts); });

  std::vector<double> recalled(classes);
  std::vector<double> columns(classes * own.rows());
  for (std::size_t c = 0; c < classes; ++c) {
    if (result.valid[c] == 0) continue;
    const double threshold = found[c][0];
    const auto scores = own.scores(c);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (!own.is_positive(i, c)) continue;
      const double x = (scores[i] - threshold) / o.temperature;
      const double e = std::exp(-std::abs(x));
      const double large = 1 / (1 + e);
      recalled[c] += x > 0 ? large : e * large;
      columns[c * own.rows() + i] =
          -e * large * large / (static_cast<double>(own.total_positive(c)) * o.temperature);
    }
  }
  own.add_up(recalled);
  const double share = internal::losses::class_weight(o.reduction, result.valid);
  for (std::size_t c = 0; c < classes; ++c) {
    if (result.valid[c] == 0) continue;
    result.each[c] = 1 - recalled[c] / static_cast<double>(own.total_positive(c));
    result.loss += share * result.each[c];
  }
  const double scale = share * own.scale_of(o.scale);
  for (double& value : columns) value *= scale;
  result.grad = own.gradient(columns);
  return result;
}

}  // namespace losses
}  // namespace tutti
