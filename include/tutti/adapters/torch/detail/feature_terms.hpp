#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <tutti/adapters/torch/detail/feature_rows.hpp>
#include <tutti/adapters/torch/detail/loss_node.hpp>

// The terms of the losses over features.

namespace tutti::libtorch::detail {

/// Results on this rank. `factor` [] multiplies `loss` and `by_bias`, which are then summed over
/// the ranks, and with the scale the gradients.
struct FeatureTerms {
  at::Tensor loss{}, factor{};
  at::Tensor by_bias{};                     // [], f64. Undefined: 0.
  std::array<at::Tensor, 2> by_features{};  // Sums over j of g_ij f_j; undefined without gradients.
};

/// log(1 + exp(x))
inline at::Tensor softplus_of(const at::Tensor& x) {
  return x.clamp_min(0) + at::log1p(at::exp(-x.abs()));
}

inline at::Tensor exp_of(const at::Tensor& logits, const at::Tensor& log_sums, std::int64_t dim) {
  return logits.sub(log_sums.to(logits.scalar_type()).unsqueeze(dim)).exp_();
}

inline void add_log_sums(at::Tensor to, const at::Tensor& logits) {
  to.copy_(at::logaddexp(to, logits.logsumexp(1).to(at::kDouble)));
}

constexpr double no_logit = -std::numeric_limits<double>::infinity();

inline FeatureTerms clip_terms(const FeatureRows& rows) {
  const double smoothing = rows.options().label_smoothing;
  const auto count = static_cast<double>(std::max<std::int64_t>(rows.total(), 1));
  const at::Tensor x = rows.own_logits();
  at::Tensor terms = at::zeros({rows.own()}, rows.numbers());
  at::Tensor slopes = terms + 2 * smoothing * (1 - 1 / count);
  std::array<at::Tensor, 2> log_sums;
  for (std::size_t side = 0; side < 2; ++side) {
    const at::Tensor others = at::full({rows.own()}, no_logit, rows.numbers());
    const at::Tensor sums = at::zeros({rows.own()}, rows.numbers());
    rows.for_tiles(side, [&](const FeatureRows::Tile& tile) {
      if (smoothing > 0) tile.of_rows(sums).add_(tile.logits.sum(1, false, at::kDouble));
      tile.own_pairs().fill_(no_logit);
      add_log_sums(tile.of_rows(others), tile.logits);
    });
    // Of the other pairs: 1 - p of the own pair would have no digit left when p is 1.
    const at::Tensor t = others - x;
    const at::Tensor cross_entropy = softplus_of(t);
    log_sums[side] = x + cross_entropy;
    terms += cross_entropy;
    if (smoothing > 0) terms += smoothing * (x - sums / count);
    slopes -= at::sigmoid(t);
  }
  FeatureTerms done{.loss = terms.sum(), .factor = at::full({}, 0.5 / count, rows.numbers())};
  const at::Tensor all = rows.gather(at::stack({log_sums[0], log_sums[1]}, 1));
  if (!rows.has_gradients()) return done;
  for (std::size_t side = 0; side < 2; ++side) {
    const auto of = static_cast<std::int64_t>(side);
    const at::Tensor own = rows.part(all).select(1, of);
    const at::Tensor other = all.select(1, 1 - of);
    at::Tensor sums = rows.sums_of(side);
    rows.for_tiles(side, [&](const FeatureRows::Tile& tile) {
      at::Tensor g = exp_of(tile.logits, tile.of_rows(own), 1);
      g.add_(exp_of(tile.logits, tile.of_columns(other), 0));
      if (smoothing > 0) g.sub_(2 * smoothing / count);
      g.diagonal(tile.diagonal).copy_(tile.of_own_pairs(slopes));
      tile.of_rows(sums).addmm_(g, tile.columns);
    });
    done.by_features[side] = sums;
  }
  return done;
}

inline FeatureTerms sig_lip_terms(const FeatureRows& rows) {
  const auto count = static_cast<double>(std::max<std::int64_t>(rows.total(), 1));
  const at::Tensor x = rows.own_logits();
  const at::Tensor slopes = -at::sigmoid(-x);
  FeatureTerms done{.loss = softplus_of(-x).sum(),
                    .factor = at::full({}, 1 / count, rows.numbers()),
                    .by_bias = at::zeros({}, rows.numbers())};
  for (std::size_t side = 0; side < (rows.has_gradients() ? 2U : 1U); ++side) {
    at::Tensor sums = rows.sums_of(side);
    rows.for_tiles(side, [&](const FeatureRows::Tile& tile) {
      tile.own_pairs().fill_(no_logit);
      if (side == 0) done.loss += softplus_of(tile.logits).sum(at::kDouble);
      if (!rows.has_gradients()) return;
      const at::Tensor g = at::sigmoid(tile.logits);
      g.diagonal(tile.diagonal).copy_(tile.of_own_pairs(slopes));
      if (side == 0) done.by_bias += g.sum(at::kDouble);
      tile.of_rows(sums).addmm_(g, tile.columns);
    });
    if (rows.has_gradients()) done.by_features[side] = sums;
  }
  return done;
}

inline FeatureTerms sup_con_terms(const FeatureRows& rows) {
  const at::Tensor own_labels = rows.part(rows.labels).unsqueeze(1);
  const auto positives = [&](const FeatureRows::Tile& tile) {
    const at::Tensor same = tile.of_rows(own_labels).eq(tile.of_columns(rows.labels));
    same.diagonal(tile.diagonal).fill_(false);
    return same;
  };
  const at::Tensor of_rows = at::zeros({rows.own(), 2}, rows.numbers());  // log-sum-exp, count.
  of_rows.select(1, 0).fill_(no_logit);
  const at::Tensor sums = at::zeros({rows.own()}, rows.numbers());
  rows.for_tiles(0, [&](const FeatureRows::Tile& tile) {
    const at::Tensor same = positives(tile);
    tile.of_rows(of_rows).select(1, 1).add_(same.sum(1));
    tile.of_rows(sums).add_(tile.logits.mul(same).sum(1, false, at::kDouble));
    tile.own_pairs().fill_(no_logit);
    add_log_sums(tile.of_rows(of_rows).select(1, 0), tile.logits);
  });
  const at::Tensor all = rows.gather(of_rows);
  const at::Tensor counts = all.select(1, 1);
  const at::Tensor has = counts.gt(0);
  const at::Tensor shares = at::where(has, 1 / counts, at::zeros_like(counts));
  // Rows without positives have no term: exp(x - infinity) is 0.
  const at::Tensor log_sums = at::where(has, all.select(1, 0), at::full_like(counts, -no_logit));
  const at::Tensor term = of_rows.select(1, 0) - rows.part(shares) * sums;
  FeatureTerms done{.loss = at::where(rows.part(has), term, at::zeros_like(term)).sum(),
                    .factor = 1 / has.sum().clamp_min(1).to(at::kDouble)};
  if (!rows.has_gradients()) return done;
  at::Tensor gradients = rows.sums_of(0);
  rows.for_tiles(0, [&](const FeatureRows::Tile& tile) {
    at::Tensor g = exp_of(tile.logits, tile.of_rows(rows.part(log_sums)), 1);
    g.add_(exp_of(tile.logits, tile.of_columns(log_sums), 0));
    const at::Tensor share = tile.of_rows(rows.part(shares)).unsqueeze(1) + tile.of_columns(shares);
    g.sub_(positives(tile) * share.to(g.scalar_type()));
    g.diagonal(tile.diagonal).fill_(0);
    tile.of_rows(gradients).addmm_(g, tile.columns);
  });
  done.by_features[0] = gradients;
  return done;
}

/// The loss and the derivatives of a call. Collective.
template <typename Terms>
std::pair<at::Tensor, LossTensors> feature_loss_of(ProcessGroup& group, const FeatureArguments& of,
                                                   const FeatureLossOptions& options,
                                                   const Terms& terms, bool records) {
  const FeatureRows rows(group, of, options, records);
  const FeatureTerms done = terms(rows);
  const bool for_average = options.grad_scale == GradScale::sum;
  LossTensors derivatives(4);
  at::Tensor by_scale = at::zeros({}, rows.numbers());
  for (std::size_t side = 0; side < of.sides && rows.has_gradients(); ++side) {
    const at::Tensor& sums = done.by_features[side];
    // Pairs are once in the sums of each side; those of one side are twice in its sums.
    if (side == 0)
      by_scale = (sums * rows.own_features(0)).sum(at::kDouble) / static_cast<double>(3 - of.sides);
    const at::Tensor factor = done.factor * (rows.scale() * (for_average ? group.size() : 1));
    derivatives[side] = sums * factor.to(sums.scalar_type());
  }
  const at::Tensor by_bias = done.by_bias.defined() ? done.by_bias : at::zeros_like(by_scale);
  const at::Tensor sums = rows.sum(at::stack({done.loss, by_scale, by_bias}) * done.factor);
  const at::Tensor shares = for_average ? sums : sums / group.size();
  const auto like = [&](std::int64_t i, const at::Tensor& x) {
    return x.defined() ? shares[i].to(x.device()).expand(x.sizes()).clone() : x;
  };
  derivatives[2] = like(1, of.scale);
  derivatives[3] = like(2, of.bias);
  return {sums[0].to(rows.own_features(0).scalar_type()), derivatives};
}

template <typename Terms>
at::Tensor feature_loss(ProcessGroup& group, const FeatureArguments& of,
                        const FeatureLossOptions& options, const Terms& terms) {
  LossTensors in;  // Of the node, which has no undefined ones.
  bool records = false;
  for (const at::Tensor& x : {of.features[0], of.features[1], of.scale, of.bias}) {
    in.push_back(x.defined() ? x : at::empty({0}));
    records = records || (c10::GradMode::is_enabled() && in.back().requires_grad());
  }
  return LossNode::apply(in[0], in[1], in[2], in[3], of.name,
                         [&] { return feature_loss_of(group, of, options, terms, records); });
}

}  // namespace tutti::libtorch::detail
