#include <tutti/losses/focal.hpp>

#include <cmath>
#include <string_view>

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

/// Returns q^(gamma - 1) q_small, where q_small is of the order of q. Returns 0 if q is 0, for any
/// gamma.
double focus(double q, double gamma, double q_small) {
  return q > 0 ? std::pow(q, gamma) * (q_small / q) : 0;
}

/// Returns a weight for each logit. All dimensions of the weights but the first may be 1.
std::vector<double> broadcast_weights(const Batch& batch) {
  const auto dims = batch.logits.shape.dims();
  const auto count = static_cast<std::size_t>(batch.logits.shape.numel());
  if (!batch.weight) return std::vector<double>(count, 1);
  const auto given = batch.weight->shape.dims();
  const auto fits = [&](std::size_t d) { return given[d] == dims[d] || (d > 0 && given[d] == 1); };
  bool fit = given.size() == dims.size();
  for (std::size_t d = 0; fit && d < dims.size(); ++d) fit = fits(d);
  if (!fit)
    failf(Errc::invalid_argument,
          "weights are {}, logits {}; they must have the same dimensions, of which all but the "
          "first may be 1",
          to_string(batch.weight->shape), to_string(batch.logits.shape));
  const auto weights = internal::losses::check_weights(*batch.weight);
  std::vector<double> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t index = 0;
    std::size_t stride = 1;
    auto left = static_cast<std::int64_t>(i);
    for (std::size_t d = dims.size(); d-- > 0; left /= dims[d]) {
      if (given[d] != 1) index += static_cast<std::size_t>(left % dims[d]) * stride;
      stride *= static_cast<std::size_t>(given[d]);
    }
    all[i] = weights[index];
  }
  return all;
}

void check_normalization(std::string_view loss, bool by_positives, Reduction reduction) {
  if (by_positives && reduction != Reduction::mean)
    failf(Errc::invalid_argument,
          "{}: normalize_by_positives divides the mean, but reduction is {}; use Reduction::mean, "
          "or set normalize_by_positives to false",
          loss, word(reduction));
}

}  // namespace

SigmoidFocal::SigmoidFocal(const Options& options) : options_(options) {
  internal::losses::check_weight("sigmoid_focal", "gamma", options.gamma);
  if (options.alpha != -1 && !(options.alpha >= 0 && options.alpha <= 1))
    failf(Errc::invalid_argument,
          "sigmoid_focal: alpha is {}; it must be between 0 and 1, or -1 for none", options.alpha);
  check_normalization("sigmoid_focal", options.normalize_by_positives, options.reduction);
}

LossResult SigmoidFocal::compute(ProcessGroup* group, const Batch& batch,
                                 const CallOptions& options) const try {
  const auto& o = options_;
  const auto words = fmt::format(
      "alpha {}, gamma {}, reduction {}, normalize_by_positives {}, grad_scale {}, logits {}",
      o.alpha, o.gamma, word(o.reduction), o.normalize_by_positives, word(o.grad_scale),
      name_of(batch.logits.dtype));
  const auto make = [&](const Batch& here) {
    const auto& logits = here.logits;
    const auto& targets = here.targets;
    internal::losses::with_type(logits.dtype, [](auto) {});
    if (targets.dtype != logits.dtype || !(targets.shape == logits.shape))
      failf(Errc::invalid_argument,
            "targets are {} {}, logits {} {}; they must have the same dtype and shape",
            name_of(targets.dtype), to_string(targets.shape), name_of(logits.dtype),
            to_string(logits.shape));
    internal::losses::check_elements("logits", logits);
    internal::losses::check_elements("targets", targets);
    const auto z = internal::losses::to_doubles(logits);
    const auto y = internal::losses::to_doubles(targets);
    const auto w = broadcast_weights(here);
    SummedParts parts;
    for (std::size_t i = 0; i < z.size(); ++i) {
      if (y[i] < 0 || y[i] > 1)
        failf(Errc::invalid_argument, "targets[{}] is {}; targets are 0 to 1", i, y[i]);
      parts.count += w[i];
      parts.positives += y[i] > 0 ? w[i] : 0;
      const auto [p, not_p] = internal::losses::Logistic(z[i]);
      const double q = p * (1 - y[i]) + not_p * y[i];  // 1 - p_t
      const double ce =
          y[i] * internal::losses::softplus(-z[i]) + (1 - y[i]) * internal::losses::softplus(z[i]);
      const double weight = w[i] * (o.alpha < 0 ? 1 : o.alpha * y[i] + (1 - o.alpha) * (1 - y[i]));
      const double power = std::pow(q, o.gamma);
      parts.each.push_back(weight * power * ce);
      parts.grad.push_back(weight * (power * (p * (1 - y[i]) - not_p * y[i]) -
                                     o.gamma * focus(q, o.gamma, p * not_p) * ce * (2 * y[i] - 1)));
    }
    return parts;
  };
  return sum_loss(group,
                  {"sigmoid_focal", words, o.reduction, o.grad_scale, o.normalize_by_positives},
                  batch, options, make);
} catch (...) {
  internal::end_calls(group);
}

SoftmaxFocal::SoftmaxFocal(const Options& options) : options_(options) {
  constexpr std::string_view name = "softmax_focal";
  internal::losses::check_weight(name, "gamma", options.gamma);
  internal::losses::check_label_smoothing(name, options.label_smoothing);
  for (std::size_t c = 0; c < options.alpha.size(); ++c)
    internal::losses::check_weight(name, fmt::format("alpha[{}]", c), options.alpha[c]);
  check_normalization(name, options.normalize_by_positives, options.reduction);
}

LossResult SoftmaxFocal::compute(ProcessGroup* group, const Batch& batch,
                                 const CallOptions& options) const try {
  const auto& o = options_;
  const auto words = fmt::format(
      "gamma {}, label_smoothing {}, background {}, ignore_index {}, reduction {}, "
      "normalize_by_positives {}, grad_scale {}, logits {} [*, {}], alpha {}",
      o.gamma, o.label_smoothing, o.background, o.ignore_index, word(o.reduction),
      o.normalize_by_positives, word(o.grad_scale), name_of(batch.logits.dtype),
      fmt::join(batch.logits.shape.row_dims(), ", "), o.alpha);
  const auto make = [&](const Batch& here) {
    const auto& logits = here.logits;
    const auto& targets = here.targets;
    internal::losses::with_type(logits.dtype, [](auto) {});
    const auto dims = logits.shape.dims();
    std::vector<std::int64_t> rest(dims.begin(), dims.end());
    if (rest.size() >= 2) rest.erase(rest.begin() + 1);
    if (dims.size() < 2 || dims[1] == 0 || targets.dtype != DType::i64 ||
        !(targets.shape == Shape(std::span<const std::int64_t>(rest))))
      failf(Errc::invalid_argument,
            "logits are {}, targets {} {}; they must be [N, C, *] and i64 [N, *]",
            to_string(logits.shape), name_of(targets.dtype), to_string(targets.shape));
    const auto classes = static_cast<std::size_t>(dims[1]);
    if (!o.alpha.empty() && o.alpha.size() != classes)
      failf(Errc::invalid_argument,
            "alpha has {} weights, logits have {} classes; pass one weight per class",
            o.alpha.size(), classes);
    internal::losses::check_elements("logits", logits);
    internal::losses::check_elements("targets", targets);
    const auto z = internal::losses::to_doubles(logits);
    const auto* y = static_cast<const std::int64_t*>(targets.data);
    const auto rows = static_cast<std::size_t>(targets.shape.numel());
    // In [N, C, *] the classes of one row are `stride` elements apart.
    const auto stride = z.empty() ? 1 : z.size() / (static_cast<std::size_t>(dims[0]) * classes);
    SummedParts parts{.each = std::vector<double>(rows), .grad = std::vector<double>(z.size())};
    const auto w = internal::losses::weights_of(here, targets.shape);
    std::vector<double> p(classes);
    for (std::size_t i = 0; i < rows; ++i) {
      if (y[i] == o.ignore_index) continue;
      if (y[i] < 0 || y[i] >= dims[1])
        failf(Errc::invalid_argument, "targets[{}] is {}, outside of 0 to {}; {} is ignored", i,
              y[i], classes - 1, o.ignore_index);
      parts.count += w[i];
      parts.positives += y[i] != o.background ? w[i] : 0;
      const auto first = i / stride * classes * stride + i % stride;
      const auto at = [&](std::size_t c) { return first + c * stride; };
      const auto own = static_cast<std::size_t>(y[i]);
      const auto [log_sum, q] =
          internal::losses::softmax(std::span(z).subspan(first), stride, own, p);
      double log_p = 0;
      for (std::size_t c = 0; c < classes; ++c) log_p += z[at(c)] - log_sum;
      const double e = o.label_smoothing;
      const double share = e / static_cast<double>(classes);
      const double ce = -(1 - e) * (z[at(own)] - log_sum) - (share > 0 ? share * log_p : 0);
      const double weight = w[i] * (o.alpha.empty() ? 1 : o.alpha[own]);
      const double power = std::pow(q, o.gamma);
      parts.each[i] = weight * power * ce;
      for (std::size_t c = 0; c < classes; ++c) {
        const double slope = p[c] - (c == own ? 1 - e : 0) - share;
        const double rise = c == own ? focus(q, o.gamma, q) : -focus(q, o.gamma, p[c]);
        parts.grad[at(c)] = weight * (power * slope - o.gamma * p[own] * rise * ce);
      }
    }
    return parts;
  };
  return sum_loss(group,
                  {"softmax_focal", words, o.reduction, o.grad_scale, o.normalize_by_positives},
                  batch, options, make);
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
