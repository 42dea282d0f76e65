#include <tutti/adapters/torch/feature_losses.hpp>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <tutti/adapters/torch.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "torch_calls.hpp"

namespace tutti {
namespace {

using libtorch::FeatureLossOptions;
using test::expect_error;
using test::World;

constexpr std::int64_t feature_rows = 23;

/// Rows of length 1, the same in every run.
at::Tensor unit_rows(double phase) {
  const at::Tensor x = at::sin(at::arange(feature_rows * 7, at::kDouble) * 1.7 + phase);
  const at::Tensor rows = x.view({feature_rows, 7});
  return rows / rows.norm(2, {1}, true);
}
at::Tensor number(double value) {
  return at::tensor({value}, at::kDouble).squeeze();
}

/// A loss in two implementations, and its inputs: both features, scale and bias.
struct FeatureLossCase {
  std::string name;
  std::function<at::Tensor(ProcessGroup& group, const std::vector<at::Tensor>& x,
                           const at::Tensor& labels, const FeatureLossOptions& options)>
      on_ranks;
  /// With all rows, in one process, with an array of all pairs.
  std::function<at::Tensor(const std::vector<at::Tensor>& x, const at::Tensor& labels)> at_once;
  FeatureLossOptions options{};
  double scale = 9;
};

at::Tensor clip_at_once(const std::vector<at::Tensor>& x, double smoothing) {
  const at::Tensor logits = x[2] * x[0].mm(x[1].t());
  const at::Tensor own = at::arange(x[0].size(0), at::kLong);
  const auto direction = [&](const at::Tensor& l) {
    return at::cross_entropy_loss(l, own, {}, at::Reduction::Mean, -100, smoothing);
  };
  return (direction(logits) + direction(logits.t())) / 2;
}

std::vector<FeatureLossCase> feature_losses() {
  const auto clip = [](ProcessGroup& group, const std::vector<at::Tensor>& x, const at::Tensor&,
                       const FeatureLossOptions& options) {
    return libtorch::clip_loss(group, x[0], x[1], x[2], options);
  };
  const auto sig_lip_at_once = [](const std::vector<at::Tensor>& x, const at::Tensor&) {
    const at::Tensor logits = x[2] * x[0].mm(x[1].t()) + x[3];
    const at::Tensor signs = 2 * at::eye(x[0].size(0), at::kDouble) - 1;
    return -at::log_sigmoid(signs * logits).sum() / x[0].size(0);
  };
  const auto sup_con_at_once = [](const std::vector<at::Tensor>& x, const at::Tensor& labels) {
    const at::Tensor self = at::eye(x[0].size(0), at::kBool);
    const at::Tensor logits = x[2] * x[0].mm(x[0].t());
    const at::Tensor log_p = logits - at::logsumexp(logits.masked_fill(self, -INFINITY), {1}, true);
    const at::Tensor positive =
        labels.unsqueeze(1).eq(labels.unsqueeze(0)).logical_and(self.logical_not());
    const at::Tensor count = positive.sum(1);
    const at::Tensor of_rows = -(positive * log_p).sum(1) / count.clamp_min(1);
    return of_rows.sum() / count.gt(0).sum();
  };
  FeatureLossOptions smooth;
  smooth.label_smoothing = 0.3;
  return {
      {"clip", clip, [](const auto& x, const auto&) { return clip_at_once(x, 0); }},
      {"clip, large scale",
       clip,
       [](const auto& x, const auto&) { return clip_at_once(x, 0); },
       {},
       200},
      {"clip, smoothed", clip, [](const auto& x, const auto&) { return clip_at_once(x, 0.3); },
       smooth},
      {"siglip",
       [](ProcessGroup& group, const auto& x, const auto&, const auto& options) {
         return libtorch::siglip_loss(group, x[0], x[1], x[2], x[3], options);
       },
       sig_lip_at_once},
      {"sup_con",
       [](ProcessGroup& group, const auto& x, const auto& labels, const auto& options) {
         return libtorch::sup_con_loss(group, x[0], labels, x[2], options);
       },
       sup_con_at_once},
  };
}

/// Both features, scale and bias, as leaves.
std::vector<at::Tensor> feature_inputs(double scale) {
  return {unit_rows(0), unit_rows(1), number(scale), number(-5)};
}
std::vector<at::Tensor> leaves(std::vector<at::Tensor> x) {
  for (at::Tensor& each : x) each = each.detach().clone().set_requires_grad(true);
  return x;
}
/// One label without a partner.
at::Tensor feature_labels() {
  at::Tensor labels = at::arange(feature_rows, at::kLong).remainder(6);
  labels[4].fill_(99);
  return labels;
}

/// Row counts of the ranks: even, uneven, and with a rank without rows.
std::vector<std::vector<std::int64_t>> feature_splits(int ranks) {
  if (ranks == 1) return {{23}};
  if (ranks == 2) return {{12, 11}, {20, 3}, {0, 23}};
  if (ranks == 3) return {{8, 8, 7}, {1, 17, 5}, {11, 0, 12}};
  return {{6, 6, 6, 5}, {2, 13, 1, 7}, {9, 0, 14, 0}};
}

struct FeatureGradients {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};
/// This rank's gradients of twice the loss.
FeatureGradients on_rank(const FeatureLossCase& loss, ProcessGroup& group,
                         const std::vector<std::int64_t>& split, const FeatureLossOptions& options,
                         c10::ScalarType type) {
  std::int64_t begin = 0;
  for (int rank = 0; rank < group.rank(); ++rank) begin += split[static_cast<std::size_t>(rank)];
  const auto part = [&](const at::Tensor& all) {
    return all.narrow(0, begin, split[static_cast<std::size_t>(group.rank())]);
  };
  auto x = feature_inputs(loss.scale);
  for (const std::size_t side : {0U, 1U}) x[side] = part(x[side]).to(type);
  x = leaves(std::move(x));
  FeatureGradients done{loss.on_ranks(group, x, part(feature_labels()), options), {}};
  (2 * done.loss).backward();
  for (const at::Tensor& each : x) done.gradients.push_back(each.grad());
  return done;
}

void expect_equals_one_process(const World& world, c10::ScalarType type, double tolerance) {
  for (const FeatureLossCase& loss : feature_losses()) {
    const auto x = leaves(feature_inputs(loss.scale));
    const at::Tensor expected = loss.at_once(x, feature_labels());
    (2 * expected).backward();
    for (const GradScale scale : {GradScale::sum, GradScale::mean})
      for (const auto& split : feature_splits(world.size))
        test::on_ranks(world, [&](ProcessGroup& group) {
          SCOPED_TRACE(loss.name);
          auto options = loss.options;
          options.grad_scale = scale;
          options.tile_rows = 4;
          options.tile_columns = 5;
          const auto done = on_rank(loss, group, split, options, type);
          const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b, double factor,
                                       const at::Tensor& unit) {
            ASSERT_EQ(a.sizes(), b.sizes());
            if (a.numel() == 0) return;
            EXPECT_LE((a.to(at::kDouble) - b * factor).abs().max().item<double>(),
                      tolerance * factor * unit.abs().max().item<double>())
                << a << "\nexpected: " << b * factor;
          };
          expect_near(done.loss, expected, 1, expected);
          std::int64_t begin = 0;
          for (int r = 0; r < group.rank(); ++r) begin += split[static_cast<std::size_t>(r)];
          const bool sum = scale == GradScale::sum;
          for (std::size_t i = 0; i < 4; ++i) {
            const at::Tensor& want = x[i].grad();
            ASSERT_EQ(done.gradients[i].defined(), want.defined()) << i;
            if (!want.defined()) continue;
            if (i < 2)
              expect_near(done.gradients[i],
                          want.narrow(0, begin, split[static_cast<std::size_t>(group.rank())]),
                          sum ? group.size() : 1, want);
            else
              expect_near(done.gradients[i], want, sum ? 1 : 1.0 / group.size(), want);
          }
        });
  }
}

struct TorchFeatureLosses : testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchFeatureLosses, testing::ValuesIn(test::worlds_of_adapters()),
                         test::CaseName());

TEST_P(TorchFeatureLosses, EqualOneProcessOnAnySplit) {
  expect_equals_one_process(GetParam(), at::kDouble, 1e-12);
}

TEST_P(TorchFeatureLosses, OfSmallerDtypesAreNearOneProcess) {
  // Logits of the scale 200 have errors of 200 units of the last place of a feature, 2^-24 in f32.
  expect_equals_one_process(GetParam(), at::kFloat, 5e-5);
}

// Half the bytes: inputs are those of f16, and only the results are rounded to it.
TEST_P(TorchFeatureLosses, OfHalvesComputeInFloat) {
  for (const c10::ScalarType type : {at::kHalf, at::kBFloat16})
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      const at::Tensor a = unit_rows(group.rank()).to(type);
      const at::Tensor b = unit_rows(group.rank() + 0.5).to(type);
      const auto gradient = [&](c10::ScalarType of) {
        auto x = leaves({a.to(of), b.to(of), number(20)});
        const at::Tensor loss = libtorch::clip_loss(group, x[0], x[1], x[2]);
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        loss.backward();
        EXPECT_EQ(x[0].grad().scalar_type(), of);
        return x[0].grad();
      };
      EXPECT_TRUE(gradient(type).equal(gradient(at::kFloat).to(type)));
    });
}

// Neither the factor of the loss nor the derivatives without it need fit f16.
TEST_P(TorchFeatureLosses, OfHalvesTakeTheFactorOfAScaledLoss) {
  constexpr double factor = 1 << 16;
  for (const FeatureLossCase& loss : feature_losses())
    for (const c10::ScalarType type : {at::kHalf, at::kBFloat16})
      test::on_ranks(GetParam(), [&](ProcessGroup& group) {
        SCOPED_TRACE(loss.name);
        const std::vector<at::Tensor> in{unit_rows(group.rank()).to(type),
                                         unit_rows(group.rank() + 0.5).to(type), number(1.0 / 4096),
                                         number(-5)};
        const auto gradients = [&](c10::ScalarType of) {
          auto x = in;
          for (at::Tensor& each : x) each = each.to(of);
          x = leaves(std::move(x));
          (factor * loss.on_ranks(group, x, feature_labels(), loss.options)).backward();
          return x;
        };
        const auto x = gradients(type);
        const auto expected = gradients(at::kFloat);
        for (std::size_t i = 0; i < 4; ++i) {
          const at::Tensor& got = x[i].grad();
          ASSERT_EQ(got.defined(), expected[i].grad().defined()) << i;
          if (!got.defined()) continue;
          EXPECT_EQ(got.scalar_type(), type);
          EXPECT_TRUE(got.equal(expected[i].grad().to(type))) << i << '\n' << got;
          EXPECT_TRUE(i >= 2 || got.isfinite().all().item<bool>()) << got;
        }
      });
}

TEST_P(TorchFeatureLosses, NoRowsAtAllHaveTheLossZero) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const at::Tensor none = at::zeros({0, 7}, at::kDouble);
    const at::Tensor labels = at::zeros({0}, at::kLong);
    for (const FeatureLossCase& loss : feature_losses()) {
      const auto x = leaves({none, none, number(3), number(-1)});
      const at::Tensor value = loss.on_ranks(group, x, labels, loss.options);
      EXPECT_EQ(value.item<double>(), 0) << loss.name;
      value.backward();
      EXPECT_EQ(x[2].grad().item<double>(), 0) << loss.name;
    }
  });
}

TEST_P(TorchFeatureLosses, AnEvaluationHasTheLossAndNoGraph) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const FeatureLossCase& loss : feature_losses()) {
      const auto x = leaves(feature_inputs(loss.scale));
      const at::Tensor value = loss.on_ranks(group, x, feature_labels(), loss.options);
      const c10::AutoGradMode off(false);
      const at::Tensor alone = loss.on_ranks(group, x, feature_labels(), loss.options);
      EXPECT_FALSE(alone.requires_grad());
      EXPECT_TRUE(alone.equal(value)) << loss.name;
    }
  });
}

// All ranks compute the gradients if one has a use for them.
TEST_P(TorchFeatureLosses, OneRankAloneMayRecordAGradient) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const FeatureLossCase& loss : feature_losses()) {
      const bool records = group.rank() == group.size() - 1;
      auto x = feature_inputs(loss.scale);
      x[2].set_requires_grad(records);
      const at::Tensor value = loss.on_ranks(group, x, feature_labels(), loss.options);
      EXPECT_EQ(value.requires_grad(), records);
      auto all = leaves(feature_inputs(loss.scale));
      loss.on_ranks(group, all, feature_labels(), loss.options).backward();
      if (!records) continue;
      value.backward();
      EXPECT_TRUE(x[2].grad().equal(all[2].grad())) << loss.name;
    }
  });
}

TEST_P(TorchFeatureLosses, ASecondDerivativeIsRefusedByName) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const FeatureLossCase& loss : feature_losses()) {
      const auto x = leaves(feature_inputs(loss.scale));
      const at::Tensor value = loss.on_ranks(group, x, feature_labels(), loss.options);
      const auto first = torch::autograd::grad({value}, {x[0]}, {}, true, true);
      EXPECT_TRUE(first[0].requires_grad()) << loss.name;
      expect_error(Errc::unsupported, {"_loss", "second derivative"},
                   [&] { torch::autograd::grad({first[0].sum()}, {x[0]}); });
    }
  });
}

/// Barlow Twins (Zbontar et al., ICML 2021) over the rows of all ranks: of the features' sums
/// alone.
at::Tensor barlow_twins(ProcessGroup& group, const at::Tensor& a, const at::Tensor& b,
                        double off_diagonal) {
  const auto sum = [&](const at::Tensor& x) { return libtorch::all_reduce(group, x); };
  const at::Tensor rows = sum(at::full({}, a.size(0), a.options()));
  const auto normalized = [&](const at::Tensor& x) {
    const at::Tensor centered = x - sum(x.sum(0)) / rows;
    return centered / (sum(centered.square().sum(0)) / rows + 1e-5).sqrt();
  };
  const at::Tensor c = sum(normalized(a).t().mm(normalized(b))) / rows;
  const at::Tensor on = (1 - c.diagonal()).square().sum();
  return on + off_diagonal * (c.square().sum() - c.diagonal().square().sum());
}

TEST_P(TorchFeatureLosses, BarlowTwinsOfSumsEqualsOneProcess) {
  const auto x = leaves({unit_rows(0), unit_rows(1)});
  const auto of_all = [](const at::Tensor& rows) {
    return (rows - rows.mean(0)) / (rows.var({0}, false, false) + 1e-5).sqrt();
  };
  const at::Tensor c = of_all(x[0]).t().mm(of_all(x[1])) / feature_rows;
  const at::Tensor target = at::eye(7, at::kDouble);
  const at::Tensor expected = ((c - target).square() * (target + (1 - target) * 0.1)).sum();
  expected.backward();
  for (const auto& split : feature_splits(GetParam().size))
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      std::int64_t begin = 0;
      for (int r = 0; r < group.rank(); ++r) begin += split[static_cast<std::size_t>(r)];
      const std::int64_t own = split[static_cast<std::size_t>(group.rank())];
      const auto y = leaves({x[0].narrow(0, begin, own), x[1].narrow(0, begin, own)});
      const at::Tensor loss = barlow_twins(group, y[0], y[1], 0.1);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
      loss.backward();  // Of the sum of all ranks' losses: times W, for a reducer that averages.
      if (own == 0) return;
      for (const std::size_t side : {0U, 1U}) {
        const at::Tensor error =
            y[side].grad() / group.size() - x[side].grad().narrow(0, begin, own);
        EXPECT_LE(error.abs().max().item<double>(), 1e-12);
      }
    });
}

struct TorchFeatureRefusals : testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchFeatureRefusals,
                         testing::Values(World{"local", 2, false}, World{"shm", 3, false}),
                         test::CaseName());

TEST_P(TorchFeatureRefusals, AreOnEveryRankAndTheGroupStaysUsable) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto x = feature_inputs(9);
    const at::Tensor labels = feature_labels();
    const auto own = last ? Errc::invalid_argument : Errc::mismatch;
    at::Tensor not_finite = x[0].clone();
    not_finite[3][2].fill_(NAN);
    const auto clip = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale,
                          const FeatureLossOptions& options = {}) {
      return [&group, a, b, scale, options] { libtorch::clip_loss(group, a, b, scale, options); };
    };
    const auto of = [&](const at::Tensor& on_last, const at::Tensor& on_others) {
      return last ? on_last : on_others;
    };
    expect_error(own, {"clip_loss", "not finite"}, clip(of(not_finite, x[0]), x[1], x[2]));
    const auto long_row = [&](double length) {
      at::Tensor rows = x[0].clone();
      rows[3] *= length;
      return rows;
    };
    // Finite features of which sums of squares or their products with a scale may overflow.
    for (const at::Tensor& rows : {long_row(1e16).to(at::kFloat), long_row(1e145)}) {
      const at::Tensor others = x[0].to(rows.scalar_type());
      const std::string most = rows.scalar_type() == at::kFloat ? "1e+15" : "1e+140";
      expect_error(own, {"clip_loss", "the features", "of length", most},
                   clip(of(rows, others), others, x[2]));
      expect_error(own, {"the candidates", "of length"}, clip(others, of(rows, others), x[2]));
    }
    EXPECT_TRUE(
        std::isfinite(libtorch::clip_loss(group, long_row(1e16), x[1], x[2]).item<double>()));
    // An exception of torch on one rank has to reach the others.
    expect_error(own, {"features", "Sparse"}, clip(of(x[0].to_sparse(), x[0]), x[1], x[2]));
    expect_error(own, {"labels", "Sparse"}, [&] {
      libtorch::sup_con_loss(group, x[0], of(labels.to_sparse(), labels), x[2]);
    });
    expect_error(own, {"torch: "}, clip(x[0], x[1], of(x[2].to(at::kMeta), x[2])));
    expect_error(own, {"candidates", "[22, 7]", "[23, 7]"},
                 clip(x[0], of(x[1].narrow(0, 0, 22), x[1]), x[2]));
    expect_error(own, {"scale is 0"}, clip(x[0], x[1], of(number(0), x[2])));
    expect_error(own, {"scale", "one number"}, clip(x[0], x[1], of(at::Tensor(), x[2])));
    expect_error(own, {"not defined"}, clip(of(at::Tensor(), x[0]), x[1], x[2]));
    expect_error(own, {"Long"}, clip(of(labels.unsqueeze(1), x[0]), x[1], x[2]));
    expect_error(own, {"bias"},
                 [&] { libtorch::siglip_loss(group, x[0], x[1], x[2], of(at::Tensor(), x[3])); });
    expect_error(own, {"labels", "[23]"},
                 [&] { libtorch::sup_con_loss(group, x[0], of(x[1], labels), x[2]); });
    expect_error(Errc::mismatch, {"[N, 6]", "[N, 7]"},
                 clip(of(x[0].narrow(1, 0, 6), x[0]), of(x[1].narrow(1, 0, 6), x[1]), x[2]));
    expect_error(Errc::mismatch, {"scale 9", "scale 10"}, clip(x[0], x[1], of(number(10), x[2])));
    FeatureLossOptions options;
    options.label_smoothing = last ? 0.5 : 0;
    expect_error(Errc::mismatch, {"label_smoothing 0.5"}, clip(x[0], x[1], x[2], options));
    expect_error(Errc::mismatch, {"clip_loss", "siglip_loss"}, [&] {
      last ? libtorch::clip_loss(group, x[0], x[1], x[2])
           : libtorch::siglip_loss(group, x[0], x[1], x[2], x[3]);
    });
    EXPECT_GT(libtorch::clip_loss(group, x[0], x[1], x[2]).item<double>(), 0);
  });
}

}  // namespace
}  // namespace tutti
