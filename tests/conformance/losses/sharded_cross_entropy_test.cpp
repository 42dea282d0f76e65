#include <tutti/losses/sharded_cross_entropy.hpp>

#include <cmath>
#include <cstring>

#include "conformance/losses/loss_rows.hpp"

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::Reduction;
using losses::ShardedCrossEntropy;

class ShardedCrossEntropyOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ShardedCrossEntropyOfRanks, testing::ValuesIn(worlds()),
                         CaseName());

/// The columns of a rank.
struct ColumnsOfRows {
  std::vector<double> logits;
  std::int64_t classes = 0;

  ColumnsOfRows(const LossRows& rows, const Layout& split, int rank) : classes(split[index(rank)]) {
    for (std::int64_t i = 0; i < rows.count(); ++i) {
      const auto from = rows.logits.begin() + i * rows.classes + offset(split, rank);
      logits.insert(logits.end(), from, from + classes);
    }
  }
  ConstTensorView view(const LossRows& rows) const {
    return {logits.data(), DType::f64, {rows.count(), classes}};
  }
};

TEST_P(ShardedCrossEntropyOfRanks, HasTheBitsOfOneProcessForAnySharding) {
  const World& world = GetParam();
  auto rows = make_loss_rows(41, 29);
  const std::vector<double> weights = [&] {
    std::vector<double> some;
    for (std::int64_t i = 0; i < rows.count(); ++i) some.push_back(static_cast<double>(i % 4) / 2);
    return some;
  }();
  for (const double smoothing : {0.0, 0.1})
    for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      for (const bool masked : {false, true}) {
        if (masked && smoothing > 0) continue;
        auto some = rows;
        for (std::int64_t i = 0; masked && i < rows.count(); ++i)  // Whole shards, too.
          for (std::int64_t c = 0; c < rows.classes; ++c)
            if (c != rows.targets[index(static_cast<int>(i))] && (i == 0 || (i + c) % 3 == 0))
              some.logits[static_cast<std::size_t>(i * rows.classes + c)] = -HUGE_VAL;
        const ShardedCrossEntropy loss({.label_smoothing = smoothing, .reduction = reduction});
        const auto want = loss({some.logits.data(), DType::f64, {some.count(), some.classes}},
                               some.targets, weights);
        ASSERT_GT(want.loss, 0.1);
        const auto whole = values_of(want.grad);
        on_ranks(world, [&](ProcessGroup& group) {
          for (const Layout& split : splits_of(some.classes, world.size)) {
            SCOPED_TRACE("classes " + to_string(split));
            const ColumnsOfRows mine(some, split, group.rank());
            const auto got = loss(group, mine.view(some), some.targets, weights);
            EXPECT_EQ(got.loss, want.loss);
            EXPECT_EQ(got.per_element, want.per_element);
            EXPECT_EQ(got.grad.shape(), mine.view(some).shape);
            LossRows gradient = some;
            gradient.logits = whole;
            EXPECT_EQ(values_of(got.grad), ColumnsOfRows(gradient, split, group.rank()).logits);
          }
        });
      }
}

TEST_P(ShardedCrossEntropyOfRanks, NothingToDivideByIsZero) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const std::vector<double> logits{1, 2, 3, 4};
    const auto all = view(std::span(logits), {2, 2});
    const std::vector<std::int64_t> ignored(2, losses::default_ignore_index);
    const std::vector<std::int64_t> targets{0, 1};
    const std::vector<double> weightless{0, 0};
    const auto expect_zero = [](const LossResult& got) {
      EXPECT_EQ(got.loss, 0);
      for (const double g : values_of(got.grad)) EXPECT_EQ(g, 0);
    };
    expect_zero(ShardedCrossEntropy()(group, all, ignored));
    expect_zero(ShardedCrossEntropy()(group, all, targets, weightless));
    expect_zero(ShardedCrossEntropy()(group, {logits.data(), DType::f64, {0, 2}},
                                      std::span(targets).first(0)));
    // No rank has a class, and no row needs one.
    expect_zero(ShardedCrossEntropy()(group, {nullptr, DType::f64, {2, 0}}, ignored));
  });
}

TEST_P(ShardedCrossEntropyOfRanks, AMistakeIsAnErrorOnAllRanks) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int size = group.size();
    const int last = size - 1;
    const bool wrong = group.rank() == last;
    const auto rows = make_loss_rows(6, 2 * size);
    const Layout split(index(size), 2);
    const ColumnsOfRows mine(rows, split, group.rank());
    const ShardedCrossEntropy loss;
    const auto expect_own_mistake = [&](const std::string& text, const ConstTensorView& logits,
                                        const ConstTensorView& targets,
                                        const ShardedCrossEntropy& of) {
      expect_error(
          wrong ? Errc::invalid_argument : Errc::mismatch, {"sharded_cross_entropy", text},
          [&] { of(group, wrong ? logits : mine.view(rows), wrong ? targets : rows.targets); });
    };
    auto bad = mine;
    bad.logits[3] = std::nan("");
    expect_own_mistake("logits[1, 1] is nan", bad.view(rows), rows.targets, loss);
    bad.logits[3] = HUGE_VAL;
    expect_own_mistake("logits[1, 1] is inf", bad.view(rows), rows.targets, loss);
    bad.logits[3] = -HUGE_VAL;
    expect_own_mistake("logits[1, 1] is -inf", bad.view(rows), rows.targets,
                       ShardedCrossEntropy({.label_smoothing = 0.1}));
    expect_own_mistake("targets must be i64 [6]", mine.view(rows), std::span(rows.targets).first(5),
                       loss);
    expect_own_mistake("logits are [12]", {mine.logits.data(), DType::f64, {12}}, rows.targets,
                       loss);

    // The same on all ranks.
    auto targets = rows.targets;
    targets[2] = 2 * size;
    const auto expect_on_all = [&](const std::string& text, const ConstTensorView& logits) {
      expect_error(Errc::invalid_argument, {"sharded_cross_entropy", text},
                   [&] { loss(group, logits, targets); });
    };
    expect_on_all("targets[2] is " + std::to_string(2 * size) + "; targets are 0 to " +
                      std::to_string(2 * size - 1),
                  mine.view(rows));
    targets[2] = -1;
    expect_on_all("targets[2] is -1", mine.view(rows));
    targets[2] = 2 * last + 1;
    bad.logits = mine.logits;
    bad.logits[5] = -HUGE_VAL;
    expect_on_all("the logit of row 2 is -inf for its target " + std::to_string(targets[2]),
                  wrong ? bad.view(rows) : mine.view(rows));
    loss(group, mine.view(rows), rows.targets);
  });
}

TEST_P(ShardedCrossEntropyOfRanks, RanksWithOtherRowsAreRefusedWithBothSides) {
  if (GetParam().size == 1) return;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int last = group.size() - 1;
    const auto name = std::to_string(last);
    const bool other = group.rank() == last;
    const auto rows = make_loss_rows(6, 2 * group.size());
    const ColumnsOfRows mine(rows, Layout(index(group.size()), 2), group.rank());
    const ShardedCrossEntropy loss;
    const auto expect = [&](const std::vector<std::string>& texts, const auto& call) {
      expect_error(Errc::mismatch, texts, call);
    };
    expect({"rank " + name + " has 5 rows, rank 0 has 6", "pass the same rows"}, [&] {
      const auto n = other ? 5 : 6;
      loss(group, {mine.logits.data(), DType::f64, {n, 2}},
           std::span(rows.targets).first(static_cast<std::size_t>(n)));
    });
    auto targets = rows.targets;
    targets[2] = 1;
    if (other) targets[2] = 0;
    expect({"targets[2] is 0 on rank " + name + " and 1 on rank 0"},
           [&] { loss(group, mine.view(rows), targets); });
    std::vector<double> weights{1, 1, 1, 1, 1, 1};
    if (other) weights[4] = 0.5;
    expect({"weights[4] is 0.5 on rank " + name + " and 1 on rank 0"},
           [&] { loss(group, mine.view(rows), rows.targets, weights); });
    expect({"with weights"}, [&] {
      other ? loss(group, mine.view(rows), rows.targets, weights)
            : loss(group, mine.view(rows), rows.targets);
    });
    expect({"label_smoothing 0.5,", "label_smoothing 0,"}, [&] {
      ShardedCrossEntropy({.label_smoothing = other ? 0.5 : 0})(group, mine.view(rows),
                                                                rows.targets);
    });
    expect({"logits f32", "logits f64"}, [&] {
      const std::vector<float> narrow(12);
      other ? loss(group, view(std::span(narrow), {6, 2}), rows.targets)
            : loss(group, mine.view(rows), rows.targets);
    });
    loss(group, mine.view(rows), rows.targets);
  });
}

}  // namespace
}  // namespace tutti::test
