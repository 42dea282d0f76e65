#include <tutti/sync.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"

// The edge cases of PyTorch Lightning's sync_ddp, and the choices of this library where versions of
// Lightning disagree: before 2.2 a mean was a new array, and max, min and unknown names were once
// sums.

namespace tutti::test {
namespace {

using Kind = ReduceOp::Kind;

constexpr auto allowed = "sum, mean, avg, max, min, prod, product";

class Sync : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Sync, testing::ValuesIn(worlds()), CaseName());

class SyncOfSeveral : public Sync {};
INSTANTIATE_TEST_SUITE_P(Worlds, SyncOfSeveral, testing::ValuesIn(worlds_of_several()), CaseName());

class SyncComparing : public Sync {};
INSTANTIATE_TEST_SUITE_P(Worlds, SyncComparing, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

/// The result is the input: the same array, with the new value.
void expect_in_place(const MaybeOwned& result, const Buffer& input) {
  EXPECT_EQ(result.data(), input.view().data);
  EXPECT_EQ(result.dtype(), input.view().dtype);
  EXPECT_EQ(result.shape(), input.view().shape);
  EXPECT_TRUE(result.is_input());
}

/// True if the backend does not reduce such arrays and refuses them by name.
bool is_refused(ProcessGroup& group, const Buffer& data, const SyncOp& op) {
  const auto kind = op.reduce().kind;
  const auto dtype = data.view().dtype;
  const bool no_call = group.size() == 1 && kind != Kind::premul_sum;
  if (no_call || reduces(group.backend(), dtype, kind)) return false;
  expect_error(Errc::unsupported, {std::string(name_of(kind)), std::string(name_of(dtype))},
               [&] { sync_ddp(data, &group, op); });
  return true;
}

template <typename T>
Array pair_of(double first, double second) {
  return array_of<T>({static_cast<T>(first), static_cast<T>(second)});
}

// Rank r holds [r + 1, 2 (r + 1)]: with two ranks [1, 2] and [2, 4].
struct Column {
  double sum, product, max, mean;
};
constexpr std::array<Column, 4> columns_of_first{
    {{1, 1, 1, 1}, {3, 2, 2, 1.5}, {6, 6, 3, 2}, {10, 24, 4, 2.5}}};

template <typename T>
class Example {
 public:
  explicit Example(ProcessGroup& group)
      : data(group, pair_of<T>(group.rank() + 1, 2 * (group.rank() + 1))),
        is(columns_of_first[index(group.size() - 1)]),
        size(group.size()) {}

  Array sum() const { return pair_of<T>(is.sum, 2 * is.sum); }
  Array max() const { return pair_of<T>(is.max, 2 * is.max); }
  Array min() const { return pair_of<T>(1, 2); }
  Array product() const { return pair_of<T>(is.product, std::ldexp(is.product, size)); }
  Array mean() const { return pair_of<T>(std::trunc(is.mean), 2 * is.mean); }

  Buffer data;
  Column is;
  int size;
};

TEST_P(Sync, NoOpIsTheSumAsDocumented) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Example<float> a(group);
    expect_in_place(sync_ddp(a.data, &group), a.data);
    EXPECT_TRUE(same(a.data.read(), a.sum()));
    const Example<std::int64_t> b(group);
    expect_in_place(sync_ddp(b.data, &group, {}), b.data);
    EXPECT_TRUE(same(b.data.read(), b.sum()));
    const Example<double> c(group);
    const char* none = nullptr;
    expect_in_place(sync_ddp(c.data, &group, none), c.data);
    EXPECT_TRUE(same(c.data.read(), c.sum()));
  });
}

struct Name {
  const char* text;
  Kind kind;
};
constexpr Name op_names[] = {
    {"sum", Kind::sum},      {"Sum", Kind::sum},     {"SUM", Kind::sum},   {"mean", Kind::avg},
    {"Mean", Kind::avg},     {"MEAN", Kind::avg},    {"avg", Kind::avg},   {"Avg", Kind::avg},
    {"AVG", Kind::avg},      {"max", Kind::max},     {"MAX", Kind::max},   {"min", Kind::min},
    {"Min", Kind::min},      {"prod", Kind::prod},   {"PROD", Kind::prod}, {"Prod", Kind::prod},
    {"product", Kind::prod}, {"PRODUCT", Kind::prod}};

// Lightning's own test asks for `result is tensor` with long, int, float and half.
TEST_P(Sync, EveryNameReducesInPlace) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const DType dtype : {DType::i64, DType::i32, DType::f32, DType::f16})
      for (const Name& name : op_names) {
        SCOPED_TRACE(std::string(name.text) + " of " + std::string(name_of(dtype)));
        const auto inputs = make_inputs(dtype, {3, 2}, group.size(), Fill::exact, name.kind);
        const Buffer data(group, inputs[index(group.rank())]);
        if (is_refused(group, data, name.text)) continue;
        expect_in_place(sync_ddp(data, &group, name.text), data);
        EXPECT_TRUE(same(data.read(), reduce_in_order(name.kind, inputs)));
      }
  });
}

TEST_P(Sync, EveryEnumeratorIsUsedAsItIsForEveryDType) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto scales = make_scales(group.size(), Fill::exact);
    for (const DType dtype : all_dtypes)
      for (const Kind kind : kinds_of(dtype)) {
        SCOPED_TRACE(std::string(name_of(kind)) + " of " + std::string(name_of(dtype)));
        const auto inputs = make_inputs(dtype, {5}, group.size(), Fill::exact, kind);
        const Buffer data(group, inputs[index(group.rank())]);
        const ReduceOp op = op_of(kind, scales, group.rank());
        if (is_refused(group, data, op)) continue;
        expect_in_place(sync_ddp(data, &group, op), data);
        EXPECT_TRUE(same(data.read(), reduce_in_order(kind, inputs, scales)));
      }
  });
}

// -3 / 2 is -1, not -2 as with a shift or a floor.
TEST_P(Sync, TheMeanOfIntegersTruncatesTowardZero) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const DType dtype : {DType::i8, DType::i32, DType::i64})
      visit_dtype(dtype, [&]<typename T>() {
        if constexpr (std::is_integral_v<T>) {
          // One column per sum; rank 0 adds the remainder.
          Array mine(dtype, {19});
          Array want(dtype, {19});
          const int others = group.size() - 1;
          for (int sum = -9; sum <= 9; ++sum) {
            mine.put<T>(sum + 9, static_cast<T>(group.rank() == 0 ? sum + 5 * others : -5));
            const int magnitude = std::abs(sum) / group.size();
            want.put<T>(sum + 9, static_cast<T>(sum < 0 ? -magnitude : magnitude));
          }
          const Buffer data(group, mine);
          if (is_refused(group, data, "mean")) return;
          sync_ddp(data, &group, "mean");
          EXPECT_TRUE(same(data.read(), want)) << name_of(dtype);
        }
      });
  });
}

TEST_P(Sync, UnknownNamesAreRefusedWithThoseThatThereAre) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array mine = array_of<std::int32_t>({group.rank() + 1, 7});
    for (const char* name : {"", "medain", "sum ", "summe", "premul_sum", "none", "m\xC3\x84X"}) {
      SCOPED_TRACE(name);
      const Buffer data(group, mine);
      const Error error = expect_error(
          Errc::invalid_argument, {"sync_ddp", "'" + std::string(name) + "' is unknown", allowed},
          [&] { sync_ddp(data, &group, name); });
      EXPECT_EQ(error.where().group, group.name());
      EXPECT_EQ(error.where().rank, group.rank());
      EXPECT_TRUE(same(data.read(), mine)) << "the input was changed";
      expect_error(Errc::invalid_argument, {name, allowed},
                   [&] { sync_ddp_if_available(data, &group, name); });
    }
    expect_usable(group);
  });
}

TEST_P(Sync, BitwiseOperationsHaveNoName) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, array_of<std::int32_t>({group.rank() + 1}));
    for (const char* name : {"band", "BOR", "bxor"})
      expect_error(Errc::invalid_argument, {name, allowed}, [&] { sync_ddp(data, &group, name); });
    if (is_refused(group, data, ReduceOp::bor)) return;
    sync_ddp(data, &group, ReduceOp::bor);
    const std::array<std::int32_t, 4> want{1, 3, 3, 7};
    EXPECT_TRUE(same(data.read(), array_of<std::int32_t>({want[index(group.size() - 1)]})));
  });
}

TEST_P(SyncComparing, ANameThatOneRankMakesUpIsAnErrorOnAll) {
  for (int wrong = 0; wrong < size(); ++wrong)
    on_ranks(world(), [&](ProcessGroup& group) {
      const Buffer data(group, array_of<float>({1}));
      if (group.rank() == wrong)
        expect_error(Errc::invalid_argument, {"'medain'", allowed},
                     [&] { sync_ddp(data, &group, "medain"); });
      else
        expect_error(Errc::mismatch, {"rank " + std::to_string(wrong), "refused", "reduce op"},
                     [&] { sync_ddp(data, &group, "mean"); });
      expect_usable(group);
    });
}

TEST_P(Sync, IsOneCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const char* name : {"sum", "mean", "max"}) {
      const Buffer data(group, array_of<float>({2, 3}));
      if (is_refused(group, data, name)) continue;
      const auto before = calls_of(group);
      sync_ddp(data, &group, name);
      EXPECT_EQ(calls_of(group), before + 1) << name << ": there is no barrier";
    }
    const auto before = calls_of(group);
    EXPECT_EQ(sync_ddp(1.0, &group), group.size());
    EXPECT_EQ(calls_of(group), before + 1);
  });
}

TEST_P(Sync, WithoutAGroupNothingIsTouchedAndTheOpIsNotLookedAt) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array mine = array_of<std::int64_t>({1, 2});
    const Buffer data(group, mine);
    const auto before = calls_of(group);
    for (const char* op : {"sum", "mean", "no such thing", ""}) {
      expect_in_place(sync_ddp_if_available(data, nullptr, op), data);
      EXPECT_TRUE(same(data.read(), mine));
    }
    EXPECT_EQ(sync_ddp_if_available(2.5, nullptr, "no such thing"), 2.5);
    EXPECT_EQ(sync_ddp_if_available(7, nullptr, "no such thing"), 7);
    EXPECT_EQ(calls_of(group), before);
  });
}

TEST_P(Sync, ANullGroupIsRefusedUnlessItMayBeMissing) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array mine = array_of<std::int64_t>({1, 2});
    const Buffer data(group, mine);
    const auto expect_refused = [](const std::function<void()>& call) {
      expect_error(Errc::not_initialized, {"sync_ddp: the group is null", "sync_ddp_if_available"},
                   call);
    };
    expect_refused([&] { sync_ddp(data, nullptr, "mean"); });
    expect_refused([] { (void)sync_ddp(1.0, nullptr); });
    expect_refused([] { (void)sync_ddp(1, nullptr); });
    EXPECT_TRUE(same(data.read(), mine));
  });
}

TEST_P(Sync, WithAGroupIfAvailableIsTheSame) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Example<float> example(group);
    expect_in_place(sync_ddp_if_available(example.data, &group, "mean"), example.data);
    EXPECT_TRUE(same(example.data.read(), pair_of<float>(example.is.mean, 2 * example.is.mean)));
    const Example<std::int32_t> bits(group);
    expect_in_place(sync_ddp_if_available(bits.data, &group, ReduceOp::max), bits.data);
    EXPECT_TRUE(same(bits.data.read(), bits.max()));
    const Example<std::int32_t> sum(group);
    expect_in_place(sync_ddp_if_available(sum.data, &group), sum.data);
    EXPECT_TRUE(same(sum.data.read(), sum.sum()));
    const int n = group.size();
    EXPECT_EQ(sync_ddp_if_available(0.5, &group), 0.5 * n);
    EXPECT_EQ(sync_ddp_if_available(3, &group, "max"), 3);
  });
}

TEST_P(Sync, NumbersComeBackAsNumbers) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int rank = group.rank();
    EXPECT_EQ(sync_ddp(0.25 * (rank + 1), &group), 0.125 * n * (n + 1));
    EXPECT_EQ(sync_ddp(0.5 * rank, &group, "mean"), 0.25 * (n - 1));
    EXPECT_EQ(sync_ddp(1.5F, &group, "max"), 1.5);
    EXPECT_EQ(sync_ddp(rank + 1, &group), n * (n + 1) / 2);
    EXPECT_EQ(sync_ddp(rank, &group, "max"), n - 1);
    EXPECT_EQ(sync_ddp(1 << rank, &group, ReduceOp::bor), (1 << n) - 1);
    // Not converted to double, which has 53 bits.
    constexpr std::int64_t large = (std::int64_t{1} << 53) + 1;
    EXPECT_EQ(sync_ddp(large, &group), large * n);
    EXPECT_EQ(sync_ddp_if_available(large, &group, "min"), large);
    EXPECT_EQ(sync_ddp_if_available(large, nullptr), large);
    EXPECT_EQ(sync_ddp(-3, &group, "mean"), -3);
    expect_error(Errc::invalid_argument, {"'mode'", allowed},
                 [&] { (void)sync_ddp(1.0, &group, "mode"); });
  });
}

TEST_P(Sync, OnlyAScaleChangesTheInputOfOneRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const double scale = 0.5 * (group.rank() + 1);
    const Buffer data(group, array_of<double>({8}));
    sync_ddp(data, &group, ReduceOp::premul(scale));
    const int n = group.size();
    EXPECT_TRUE(same(data.read(), array_of<double>({2.0 * n * (n + 1)})));
  });
}

TEST_P(Sync, EmptyAndZeroDimensionalArraysAreArraysToo) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer none(group, DType::f32, {0, 3});
    expect_in_place(sync_ddp(none, &group, "mean"), none);
    const Buffer one(group, array_of<double>({2}).reshaped({}));
    expect_in_place(sync_ddp(one, &group), one);
    EXPECT_TRUE(same(one.read(), array_of<double>({2.0 * group.size()}).reshaped({})));
  });
}

// Means and losses.

TEST_P(Sync, TheGlobalMeanWeighsRanksByTheirRows) {
  on_ranks(world(), [](ProcessGroup& group) {
    // Rank r has r rows of r each: rank 0 has none.
    double sum = 0;
    double count = 0;
    for (int r = 0; r < group.size(); ++r) {
      sum += r * r;
      count += r;
    }
    const double rank = group.rank();
    const double mean = global_mean(group, rank * rank, rank);
    if (group.size() == 1)
      EXPECT_TRUE(std::isnan(mean)) << "no rank has rows";
    else
      EXPECT_EQ(mean, sum / count);
    EXPECT_TRUE(std::isnan(global_mean(group, 0, 0)));
    EXPECT_TRUE(std::isnan(global_mean(group, std::nan(""), 1)));
    EXPECT_EQ(global_mean(group, 6, 4), 1.5);
    const auto before = calls_of(group);
    EXPECT_EQ(global_mean(group, 1, 2), 0.5);
    EXPECT_EQ(calls_of(group), before + 1);
  });
}

TEST_P(Sync, LossesAreReducedByNameInOneRound) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const double rank = group.rank();
    const std::vector<NamedLoss> losses{{"loss", rank + 1, rank + 1},
                                        {"", 3 * rank, 2},
                                        {"with 'quotes', and\nlines", -1, rank == 0 ? 4.0 : 0.0},
                                        {"of no rank", 0, 0}};
    const auto before = calls_of(group);
    const auto means = reduce_losses(group, losses);
    EXPECT_EQ(calls_of(group), before + (inlines(group) ? 1U : 2U));
    ASSERT_EQ(means.size(), 4U);
    EXPECT_EQ(means[0], 1.0);
    EXPECT_EQ(means[1], 3.0 * n * (n - 1) / 2 / (2 * n));
    EXPECT_EQ(means[2], -n / 4.0);
    EXPECT_TRUE(std::isnan(means[3]));
    EXPECT_TRUE(reduce_losses(group, {}).empty());
  });
}

// Sums of numbers of different magnitude round. The ranks are added in order, so the result is the
// same on all.
TEST_P(Sync, LossesHaveTheSameBitsOnEveryRankAndBackend) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto value = [](int r) { return std::exp(3.7 * r) / 3; };
    const std::vector<NamedLoss> mine{{"loss", value(group.rank()), 0.1}};
    double sum = 0;
    double count = 0;
    for (int r = 0; r < group.size(); ++r) {
      sum += value(r);
      count += 0.1;
    }
    EXPECT_EQ(reduce_losses(group, mine)[0], sum / count);
  });
}

TEST_P(Sync, ManyLossesWithLongNamesNeedNotFitInOneRound) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::vector<NamedLoss> losses;
    for (int i = 0; i < 700; ++i)
      losses.push_back({std::string(100, 'x') + std::to_string(i), 1.0 * i, 2});
    const auto means = reduce_losses(group, losses);
    ASSERT_EQ(means.size(), losses.size());
    for (std::size_t i = 0; i < means.size(); ++i) EXPECT_EQ(means[i], losses[i].sum / 2);
  });
}

// In normal mode too, because no backend needs to compare for this.
TEST_P(SyncOfSeveral, OtherNamesAreAMismatchOnEveryRank) {
  using Losses = std::vector<NamedLoss>;
  const Losses usual{{"loss", 1, 1}, {"aux", 2, 1}};
  struct Case {
    Losses other;
    std::string text;
  };
  const std::vector<Case> cases{
      {{{"loss", 1, 1}, {"auks", 2, 1}}, "2 losses: 'loss', 'auks'"},
      {{{"aux", 1, 1}, {"loss", 2, 1}}, "2 losses: 'aux', 'loss'"},
      {{{"loss", 1, 1}}, "1 losses: 'loss'"},
      {{{"loss", 1, 1}, {"aux", 2, 1}, {"third", 2, 1}}, "3 losses: 'loss', 'aux', 'third'"},
      {{}, "0 losses"},
      // Concatenated, the names are equal.
      {{{"lossa", 1, 1}, {"ux", 2, 1}}, "2 losses: 'lossa', 'ux'"},
  };
  for (const Case& c : cases)
    for (int odd = 0; odd < size(); ++odd) {
      PerRank<std::string> texts(size());
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(c.text);
        const Losses& mine = group.rank() == odd ? c.other : usual;
        const Error error =
            expect_error(Errc::mismatch,
                         {"reduce_losses", group.name(), c.text, "2 losses: 'loss', 'aux'",
                          "rank " + std::to_string(odd) + " has"},
                         [&] { (void)reduce_losses(group, mine); });
        texts[group.rank()] = error.what();
        EXPECT_EQ(reduce_losses(group, usual)[1], 2) << "the group is usable";
      });
      for (const std::string& text : texts.all()) EXPECT_EQ(text, texts[0]);
    }
}

/// A rank's micro-batches in one step: rows and mean of each.
struct MicroBatch {
  std::int64_t rows;
  double mean;
};
/// Rank r has r + 1 micro-batches; the means are chosen so that nothing rounds.
std::vector<MicroBatch> batches_of(int rank) {
  std::vector<MicroBatch> all;
  for (int i = 0; i <= rank; ++i) all.push_back({3 * i + rank + 1, 0.25 * (7 * rank - 5 * i + 1)});
  return all;
}

TEST_P(Sync, TheAccumulatedLossIsTheMeanOfAllRowsOfAllMicroBatches) {
  on_ranks(world(), [](ProcessGroup& group) {
    double sum = 0;
    double rows = 0;
    for (int r = 0; r < group.size(); ++r)
      for (const MicroBatch& batch : batches_of(r)) {
        sum += static_cast<double>(batch.rows) * batch.mean;
        rows += static_cast<double>(batch.rows);
      }
    LossAccumulator losses;
    for (int step = 0; step < 2; ++step) {  // The second step is independent of the first.
      for (const MicroBatch& batch : batches_of(group.rank()))
        losses.add("loss", batch.mean, batch.rows);
      const auto reduced = losses.reduce(group);
      ASSERT_EQ(reduced.size(), 1U);
      EXPECT_EQ(reduced[0].first, "loss");
      EXPECT_EQ(reduced[0].second, sum / rows);
    }
    EXPECT_TRUE(losses.reduce(group).empty());
  });
}

TEST_P(Sync, AccumulatedLossesComeInTheOrderOfTheirNames) {
  on_ranks(world(), [](ProcessGroup& group) {
    // Ranks add their first micro-batches in different orders.
    std::vector<std::string> names{"c", "a", "b"};
    std::rotate(names.begin(), names.begin() + group.rank() % 3, names.end());
    LossAccumulator losses;
    for (const auto& name : names) losses.add(name, name[0], 2);
    using Reduced = std::vector<std::pair<std::string, double>>;
    EXPECT_EQ(losses.reduce(group), (Reduced{{"a", 'a'}, {"b", 'b'}, {"c", 'c'}}));
  });
}

TEST_P(Sync, ARankWithoutMicroBatchesExpectsTheNames) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.expect("rare");
    for (int step = 0; step < 3; ++step) {  // expect() persists.
      if (group.rank() == 0 && step < 2) losses.add("rare", 0.5, 8);
      const auto reduced = losses.reduce(group);
      ASSERT_EQ(reduced.size(), 1U);
      EXPECT_EQ(reduced[0].first, "rare");
      if (step < 2)
        EXPECT_EQ(reduced[0].second, 0.5);
      else
        EXPECT_TRUE(std::isnan(reduced[0].second)) << "no rank had a row";
    }
  });
}

TEST_P(Sync, TheMeanOfNoRowsIsNotRead) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.add("loss", std::nan(""), 0);
    losses.add("loss", 2, 4);
    EXPECT_EQ(losses.reduce(group)[0].second, 2);
    losses.add("loss", std::nan(""), group.rank() == 0 ? 1 : 0);
    EXPECT_TRUE(std::isnan(losses.reduce(group)[0].second)) << "a row's NaN is one";
    losses.add("loss", 1, 1);
    expect_error(Errc::invalid_argument, {"'loss'", "-3 rows"}, [&] { losses.add("loss", 1, -3); });
    EXPECT_EQ(losses.reduce(group)[0].second, 1) << "the refused one has left nothing";
  });
}

TEST_P(SyncOfSeveral, AnErrorLeavesTheAccumulatedAsItWas) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.add("loss", 3, 2);
    if (group.rank() == 0) losses.add("extra", 1, 1);
    expect_error(Errc::mismatch, {"'extra', 'loss'", "1 losses: 'loss'"},
                 [&] { (void)losses.reduce(group); });
    losses.expect("extra");
    const auto reduced = losses.reduce(group);
    ASSERT_EQ(reduced.size(), 2U);
    EXPECT_EQ(reduced[0].second, 1);
    EXPECT_EQ(reduced[1].second, 3);
  });
}

}  // namespace
}  // namespace tutti::test
