#include <tutti/losses/cross_entropy.hpp>

#include <numeric>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/options.hpp"
#include "losses/summed_loss.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;
using internal::losses::sum_loss;
using internal::losses::SummedParts;
using internal::losses::word;
/// Computes the terms of one class; `z` is [N], `weights` those of the rows.
SummedParts binary(std::span<const double> z, std::span<const std::int64_t> targets,
                   std::span<const double> weights, const CrossEntropyOptions& o) {
  SummedParts parts{.each = std::vector<double>(z.size()), .grad = std::vector<double>(z.size())};
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (targets[i] == o.ignore_index) continue;
    const double w = weights[i];
    parts.count += w;
    const auto [p, not_p] = internal::losses::Logistic(z[i]);
    const double share = o.label_smoothing / 2;
    const double yes = w * (o.pos_weight * (targets[i] != 0 ? 1 - share : share));
    const double no = w * (targets[i] != 0 ? share : 1 - share);
    parts.each[i] = yes * internal::losses::softplus(-z[i]) + no * internal::losses::softplus(z[i]);
    parts.grad[i] = no * p - yes * not_p;
  }
  return parts;
}

/// Computes the terms of several classes; `z` is [N, C], `weights` those of the rows.
SummedParts multi_class(std::span<const double> z, std::span<const std::int64_t> targets,
                        std::span<const double> weights, const CrossEntropyOptions& o) {
  const auto classes = static_cast<std::size_t>(o.classes);
  const auto weight = o.weight.empty() ? std::vector<double>(classes, 1) : o.weight;
  const double smoothed = o.label_smoothing / static_cast<double>(classes);
  const double all_weights = std::accumulate(weight.begin(), weight.end(), 0.0);
  SummedParts parts{.each = std::vector<double>(targets.size()),
                    .grad = std::vector<double>(z.size())};
  std::vector<double> p(classes);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == o.ignore_index) continue;
    const auto row = z.subspan(i * classes, classes);
    const auto own = static_cast<std::size_t>(targets[i]);
    const auto [log_sum, others] = internal::losses::softmax(row, 1, own, p);
    const double hard = weights[i] * ((1 - o.label_smoothing) * weight[own]);
    const double share = weights[i] * smoothed;
    parts.count += weights[i] * weight[own];
    parts.each[i] = hard * (log_sum - row[own]);
    for (std::size_t c = 0; c < classes; ++c) {
      if (share > 0) parts.each[i] += share * weight[c] * (log_sum - row[c]);
      parts.grad[i * classes + c] =
          hard * (c == own ? -others : p[c]) + share * (all_weights * p[c] - weight[c]);
    }
  }
  return parts;
}

}  // namespace

CrossEntropy::CrossEntropy(const Options& options) : options_(options) {
  const auto& o = options;
  constexpr std::string_view name = "cross_entropy";
  internal::losses::check_classes(name, o.classes);
  internal::losses::check_label_smoothing(name, o.label_smoothing);
  internal::losses::check_weight(name, "pos_weight", o.pos_weight);
  if (o.classes > 1 && o.pos_weight != 1)
    failf(Errc::invalid_argument,
          "cross_entropy: pos_weight is {} for {} classes; pos_weight is only for one class; use "
          "weight",
          o.pos_weight, o.classes);
  if (o.weight.empty()) return;
  if (o.classes == 1)
    failf(Errc::invalid_argument, "cross_entropy: weight is set, but classes is 1; use pos_weight");
  if (std::ssize(o.weight) != o.classes)
    failf(Errc::invalid_argument,
          "cross_entropy: there are {} weights for {} classes; pass one per class", o.weight.size(),
          o.classes);
  for (std::size_t c = 0; c < o.weight.size(); ++c)
    internal::losses::check_weight(name, fmt::format("weight[{}]", c), o.weight[c]);
}

LossResult CrossEntropy::compute(ProcessGroup* group, const Batch& batch,
                                 const CallOptions& options) const try {
  const auto& o = options_;
  const auto words = fmt::format(
      "classes {}, label_smoothing {}, pos_weight {}, ignore_index {}, reduction {}, grad_scale "
      "{}, "
      "logits {}, weight {}",
      o.classes, o.label_smoothing, o.pos_weight, o.ignore_index, word(o.reduction),
      word(o.grad_scale), name_of(batch.logits.dtype), o.weight);
  return sum_loss(group, {"cross_entropy", words, o.reduction, o.grad_scale}, batch, options,
                  [&](const Batch& here) {
                    const auto y = internal::losses::check_rows(here.logits, here.targets,
                                                                o.classes, o.ignore_index);
                    const auto w = internal::losses::weights_of(here, Shape::vector(std::ssize(y)));
                    const auto z = internal::losses::to_doubles(here.logits);
                    return o.classes == 1 ? binary(z, y, w, o) : multi_class(z, y, w, o);
                  });
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
