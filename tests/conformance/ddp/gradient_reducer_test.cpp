#include <tutti/ddp/gradient_reducer.hpp>

#include <cmath>
#include <thread>

#include <tutti/ddp/join.hpp>
#include <tutti/ddp/local_sgd.hpp>

#include "conformance/ddp/network.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::ReducerOptions;

class Reducer : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Reducer, testing::ValuesIn(worlds()), CaseName());

class ReducerOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr unsigned reducer_steps = 50;

/// Trains with the options, and expects the parameters of a training on one process.
void expect_trains(const World& world, const ReducerOptions& options) {
  const auto want = trained_alone<double>(1, reducer_steps);
  on_ranks(world, [&](ProcessGroup& group) {
    // The other ranks start with other values; rank 0's values replace them.
    Network<double> network(group.rank() == 0 ? 1U : 7U);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), options);
    staged.fetch_values();
    for (unsigned step = 0; step < reducer_steps; ++step) {
      staged.step(reducer, step);
      network.update(learning_rate);
    }
    EXPECT_LE(distance(network, want), 1e-10) << "the parameters differ from one process";
  });
}

TEST_P(Reducer, TrainsAsOneProcessWithUnevenSplits) {
  expect_trains(GetParam(), {});
}

TEST_P(Reducer, TrainsAsOneProcessWithSmallBuckets) {
  expect_trains(GetParam(), small_buckets());
}

TEST_P(Reducer, TrainsAsOneProcessWithFixedOrder) {
  auto options = small_buckets();
  options.order_fixed = true;
  options.check_steps = false;
  expect_trains(GetParam(), options);
}

// The sum of zeros that are negative is +0; the left fold keeps the sign.
TEST_P(Reducer, ItsSumsAreReproducibleOnRequest) {
  if (!reproduces(GetParam().backend)) GTEST_SKIP() << "over NCCL the order is NCCL's";
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    float value = 1;
    GradientReducer reducer(group, {{"w", TensorView(std::span(&value, 1))}},
                            {.divisor = 1, .reproducible = true});
    float gradient = -0.0F;
    reducer.mark_ready(0, TensorView(std::span(&gradient, 1)));
    reducer.finish();
    EXPECT_FALSE(std::signbit(gradient));
  });
}

TEST_P(Reducer, ReducesGradientsThatLiveInTheBuckets) {
  const auto want = trained_alone<double>(1, 10);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network<double> network(1);
    Staged<double> staged(group, network);
    auto options = small_buckets();
    options.gradient_as_bucket_view = true;
    GradientReducer reducer(group, staged.parameters(), options);
    auto& memory = group.memory();
    for (unsigned step = 0; step < 10; ++step) {
      const auto rows = uneven_split(group.size(), step);
      network.zero_gradients();
      network.backward(step, offset(rows, group.rank()), rows[index(group.rank())], staged.weight(),
                       [&](std::size_t id) {
                         const TensorView place = reducer.gradient(id);
                         EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place.data) % 64, 0U);
                         memory.copy(place.data, network.gradients[id].data(), place.bytes(), {});
                         reducer.mark_ready(id, place);
                       });
      reducer.finish();
      for (std::size_t id = 0; id < 4; ++id) {
        const TensorView place = reducer.gradient(id);
        memory.copy(network.gradients[id].data(), place.data, place.bytes(), {});
      }
      network.update(learning_rate);
    }
    EXPECT_LE(distance(network, want), 1e-10) << "the parameters differ from one process";
  });
}

TEST_P(Reducer, MicroBatchesWithoutSyncAreOneBatch) {
  const auto want = trained_alone<double>(1, 10);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network<double> network(1);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), small_buckets());
    for (unsigned step = 0; step < 10; ++step) {
      const auto rows = uneven_split(group.size(), step);
      const auto first = offset(rows, group.rank());
      const auto mine = rows[index(group.rank())];
      const auto mark = [&](std::size_t id) { staged.mark(reducer, id); };
      network.zero_gradients();
      {
        const auto scope = reducer.no_sync();
        for (std::int64_t r = 0; r + 1 < mine; ++r) {
          network.backward(step, first + r, 1, staged.weight(), mark);
          reducer.finish();
        }
      }
      const auto last = std::min<std::int64_t>(mine, 1);
      network.backward(step, first + mine - last, last, staged.weight(), mark);
      reducer.finish();
      staged.fetch_gradients();
      network.update(learning_rate);
    }
    EXPECT_LE(distance(network, want), 1e-10) << "the parameters differ from one batch";
  });
}

// Each rank marks sums over its rows; the reducer divides.
TEST_P(Reducer, FinishOfRowsIsTheMeanOverTheRowsOfAllMicroBatches) {
  const auto want = trained_alone<double>(1, 10);
  const ReducerOptions configurations[] = {
      {.average_over_rows = true},
      {.first_bucket_cap = 64, .bucket_cap = 128, .divisor = 1, .average_over_rows = true},
      {.gradient_as_bucket_view = true,
       .check_steps = false,
       .divisor = 3.5,
       .average_over_rows = true}};
  for (const ReducerOptions& options : configurations)
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      Network<double> network(1);
      Staged<double> staged(group, network);
      GradientReducer reducer(group, staged.parameters(), options);
      auto& memory = group.memory();
      for (unsigned step = 0; step < 10; ++step) {
        const auto rows = uneven_split(group.size(), step);
        const auto first = offset(rows, group.rank());
        const auto mine = rows[index(group.rank())];
        const auto mark = [&](std::size_t id) {
          if (!options.gradient_as_bucket_view) return staged.mark(reducer, id);
          const TensorView place = reducer.gradient(id);
          memory.copy(place.data, network.gradients[id].data(), place.bytes(), {});
          reducer.mark_ready(id, place);
        };
        network.zero_gradients();
        if (mine == 0) {
          reducer.step_empty();
        } else {  // Micro-batches of 1 row and of the others.
          {
            const auto scope = reducer.no_sync();
            network.backward(step, first, 1, 1, mark);
            reducer.finish(1);
          }
          network.backward(step, first + 1, mine - 1, 1, mark);
          reducer.finish(static_cast<double>(mine - 1));
        }
        for (std::size_t id = 0; id < 4; ++id) {
          const TensorView place = reducer.gradient(id);
          memory.copy(network.gradients[id].data(), place.data, place.bytes(), {});
        }
        network.update(learning_rate);
      }
      EXPECT_LE(distance(network, want), 1e-10) << "the parameters differ from one batch";
    });
}

/// Returns an array filled with `value`.
Array filled(const Shape& shape, double value) {
  Array array(DType::f64, shape);
  for (std::int64_t i = 0; i < array.numel(); ++i) array.put<double>(i, value);
  return array;
}

void expect_all(const Array& got, double value) {
  for (std::int64_t i = 0; i < got.numel(); ++i) EXPECT_DOUBLE_EQ(got.get<double>(i), value);
}
void expect_all(const Buffer& got, double value) {
  expect_all(got.read(), value);
}

/// Gradients with the value rank + 1, of parameters of 3, 40 and 0 elements.
struct Pair {
  explicit Pair(ProcessGroup& g)
      : group(g), a(g, filled({3}, g.rank() + 1)), b(g, filled({4, 10}, g.rank() + 1)) {}
  static std::vector<ddp::Parameter> parameters(ProcessGroup& group) {
    const Device device = group.memory().device();
    return {{"a", {nullptr, DType::f64, {3}, device}},
            {"b", {nullptr, DType::f64, {4, 10}, device}},
            {"none", {nullptr, DType::f32, {0}, device}}};
  }
  void mark_none(GradientReducer& reducer) const {
    reducer.mark_ready(2, TensorView(nullptr, DType::f32, {0}, group.memory().device()));
  }
  void mark_all(GradientReducer& reducer) const {
    mark_none(reducer);
    reducer.mark_ready(0, a);
    reducer.mark_ready(1, b);
  }
  ProcessGroup& group;
  Buffer a;
  Buffer b;
};

/// Returns parameters of 8 elements.
std::vector<ddp::Parameter> some_parameters(ProcessGroup& group, std::size_t count) {
  return {count, {"p", {nullptr, DType::f64, {8}, group.memory().device()}}};
}

double sum_of_ranks(const ProcessGroup& group) {
  return group.size() * (group.size() + 1) / 2.0;
}

TEST_P(Reducer, HoldsItsGroupThatMovesInAVector) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<ProcessGroup> groups;
    groups.push_back(group.share());
    GradientReducer reducer(groups[0], Pair::parameters(groups[0]));
    ddp::Join join(reducer);
    ddp::PeriodicModelAverager averager(groups[0], 1);
    for (int step = 0; step < 3; ++step) {
      groups.push_back(group.share());  // Moves the first one, more than once.
      groups.shrink_to_fit();
      if (step == 2) groups.clear();
      EXPECT_TRUE(join.next(true));
      const Pair pair(group);
      pair.mark_all(reducer);
      reducer.finish();
      expect_all(pair.b, sum_of_ranks(group) / group.size());
      const Buffer weights(group, filled({3}, group.rank() + 1));
      const TensorView view = weights;
      EXPECT_TRUE(averager.average(std::span(&view, 1)));
      expect_all(weights, sum_of_ranks(group) / group.size());
    }
    expect_usable(reducer.buckets()[0].group());
  });
}

TEST_P(Reducer, DividesByWorldSizeOrByTheGivenDivisor) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group));
    const Pair mean(group);
    mean.mark_all(reducer);
    reducer.finish();
    expect_all(mean.a, sum_of_ranks(group) / group.size());
    expect_all(mean.b, sum_of_ranks(group) / group.size());
    for (const double divisor : {1.0, 8.0}) {
      reducer.set_divisor(divisor);
      const Pair own(group);
      own.mark_all(reducer);
      reducer.finish();
      expect_all(own.a, sum_of_ranks(group) / divisor);
      expect_all(own.b, sum_of_ranks(group) / divisor);
    }
    reducer.set_divisor(0);
    const Pair again(group);
    again.mark_all(reducer);
    reducer.finish();
    expect_all(again.b, sum_of_ranks(group) / group.size());
  });
}

TEST_P(Reducer, OtherDtypesHaveBucketsOfTheirOwn) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const double mean = sum_of_ranks(group) / group.size();
    std::vector<float> f(5, static_cast<float>(group.rank() + 1));
    std::vector<double> d(5, group.rank() + 1);
    std::vector<BFloat16> h(5, BFloat16(static_cast<float>(group.rank() + 1)));
    GradientReducer reducer(group,
                            {{"f", TensorView(f)}, {"d", TensorView(d)}, {"h", TensorView(h)}},
                            {.rebuild_buckets = false});
    ASSERT_EQ(reducer.buckets().size(), 3U);
    EXPECT_EQ(reducer.buckets()[0].buffer().dtype, DType::bf16) << "in reverse order";
    std::fill(f.begin(), f.end(), static_cast<float>(group.rank() + 1));
    std::fill(d.begin(), d.end(), group.rank() + 1);
    std::fill(h.begin(), h.end(), BFloat16(static_cast<float>(group.rank() + 1)));
    reducer.mark_ready(0, f);
    reducer.mark_ready(1, d);
    reducer.mark_ready(2, h);
    reducer.finish();
    for (const float v : f) EXPECT_FLOAT_EQ(v, static_cast<float>(mean));
    for (const double v : d) EXPECT_DOUBLE_EQ(v, mean);
    for (const BFloat16 v : h) EXPECT_NEAR(static_cast<float>(v), mean, 0.02);
  });
}

TEST_P(Reducer, BuffersAreThoseOfRankZero) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<std::int64_t> count(3, group.rank() + 5);
    std::vector<float> mean(7, static_cast<float>(group.rank()));
    GradientReducer reducer(group, Pair::parameters(group), {},
                            {{"count", TensorView(count)}, {"mean", TensorView(mean)}});
    EXPECT_EQ(count, std::vector<std::int64_t>(3, 5));
    EXPECT_EQ(mean, std::vector<float>(7, 0.0F));
    mean.assign(7, static_cast<float>(group.rank() + 2));
    reducer.broadcast_buffers();
    EXPECT_EQ(mean, std::vector<float>(7, 2.0F));
  });
}

/// Returns the ids of each bucket.
std::vector<std::vector<std::size_t>> ids_of(const GradientReducer& reducer) {
  std::vector<std::vector<std::size_t>> all;
  for (const ddp::Bucket& bucket : reducer.buckets()) {
    all.emplace_back();
    for (const ddp::Slice& slice : bucket.slices()) all.back().push_back(slice.id);
  }
  return all;
}

TEST_P(Reducer, BucketsAreRebuiltInTheOrderOfArrivalOnRankZero) {
  using Ids = std::vector<std::vector<std::size_t>>;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<Buffer> gradients;
    for (int i = 0; i < 4; ++i) gradients.emplace_back(group, filled({8}, 0));
    GradientReducer reducer(group, some_parameters(group, 4),
                            {.first_bucket_cap = 64, .bucket_cap = 128});
    EXPECT_EQ(ids_of(reducer), (Ids{{3}, {2, 1}, {0}}));
    for (int step = 0; step < 3; ++step) {
      for (const Buffer& gradient : gradients) gradient.write(filled({8}, group.rank() + 1));
      // Each rank marks in another order; the rebuild uses rank 0's.
      const std::size_t orders[][4] = {{1, 3, 0, 2}, {2, 0, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}};
      for (const std::size_t id : orders[group.rank()]) reducer.mark_ready(id, gradients[id]);
      reducer.finish();
      EXPECT_EQ(ids_of(reducer), (Ids{{1}, {3, 0}, {2}}));
      for (std::size_t id = 0; id < 4; ++id) {
        expect_all(gradients[id], sum_of_ranks(group) / group.size());
        expect_all(content_of(group, reducer.gradient(id)), sum_of_ranks(group) / group.size());
      }
      for (const ddp::Bucket& bucket : reducer.buckets()) EXPECT_EQ(bucket.generation(), 1);
    }
  });
}

TEST_P(Reducer, AFullBucketIsLaunchedBeforeTheOthersAreMarked) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    auto options = small_buckets();
    options.rebuild_buckets = false;
    const Pair pair(group);
    GradientReducer reducer(group, Pair::parameters(group), options);
    std::vector<int> launched;
    reducer.set_hook([&](ddp::Bucket& bucket) {
      launched.push_back(bucket.index());
      EXPECT_EQ(bucket.is_last(), bucket.index() + 1 == bucket.count());
      return bucket.group().all_reduce_async(bucket.buffer(), bucket.op(), bucket.call());
    });
    ASSERT_EQ(reducer.buckets().size(), 3U);  // none, b, a
    reducer.mark_ready(0, pair.a);
    EXPECT_TRUE(launched.empty()) << "bucket 2 waits for those before it";
    pair.mark_none(reducer);
    EXPECT_EQ(launched, (std::vector<int>{0}));
    reducer.mark_ready(1, pair.b);
    EXPECT_EQ(launched, (std::vector<int>{0, 1, 2}));
    reducer.finish();
    expect_all(pair.a, sum_of_ranks(group) / group.size());
  });
}

TEST_P(Reducer, MarksOfSeveralThreadsAreCounted) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<Buffer> gradients;
    for (int i = 0; i < 16; ++i) gradients.emplace_back(group, filled({8}, 0));
    GradientReducer reducer(group, some_parameters(group, 16),
                            {.first_bucket_cap = 64, .bucket_cap = 192});
    for (int step = 0; step < 3; ++step) {
      for (const Buffer& gradient : gradients) gradient.write(filled({8}, group.rank() + 1));
      {
        std::vector<std::jthread> threads;
        for (std::size_t t = 0; t < 4; ++t)
          threads.emplace_back([&, t] {
            for (std::size_t id = t; id < 16; id += 4) reducer.mark_ready(id, gradients[id]);
          });
      }
      reducer.finish();
      for (const Buffer& gradient : gradients)
        expect_all(gradient, sum_of_ranks(group) / group.size());
    }
  });
}

TEST_P(Reducer, UnusedParametersOfAllRanksAreNoMistake) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group));
    const Pair first(group);
    first.mark_all(reducer);
    reducer.finish();
    const Pair pair(group);
    reducer.mark_unused(0);
    reducer.mark_unused(2);
    reducer.mark_ready(1, pair.b);
    reducer.finish();
    expect_all(pair.b, sum_of_ranks(group) / group.size());
    EXPECT_FALSE(reducer.is_used(0));
    EXPECT_TRUE(reducer.is_used(1));
    expect_all(content_of(group, reducer.gradient(0)), 0);
  });
}

TEST_P(Reducer, WithFindUnusedRanksMayLackGradients) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group), {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const Pair pair(group);
      // Only rank 0 has a gradient of b. No rank has a gradient of `none`.
      reducer.mark_ready(0, pair.a);
      if (group.rank() == 0) reducer.mark_ready(1, pair.b);
      reducer.finish();
      expect_all(pair.a, sum_of_ranks(group) / group.size());
      EXPECT_TRUE(reducer.is_used(0));
      EXPECT_TRUE(reducer.is_used(1));
      EXPECT_FALSE(reducer.is_used(2));
      expect_all(content_of(group, reducer.gradient(1)), 1.0 / group.size());
    }
  });
}

TEST_P(ReducerOfSeveral, ARankWithoutABatchContributesZeros) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group));
    const int last = group.size() - 1;
    for (int step = 0; step < 3; ++step) {
      if (group.rank() == last && step != 1) {
        reducer.step_empty();
        expect_all(content_of(group, reducer.gradient(0)),
                   (sum_of_ranks(group) - group.size()) / group.size());
        continue;
      }
      const Pair pair(group);
      pair.mark_all(reducer);
      reducer.finish();
      expect_all(pair.a, (sum_of_ranks(group) - (step == 1 ? 0 : group.size())) / group.size());
    }
  });
}

// An optimizer that skips unused parameters must skip the same ones on all ranks.
TEST_P(ReducerOfSeveral, ARankWithoutABatchKnowsWhichParametersAreUsed) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group));
    const bool has_batch = group.rank() != group.size() - 1;
    for (const bool without_first : {false, true, false}) {
      const Pair pair(group);
      if (!has_batch) {
        reducer.step_empty();
      } else if (without_first) {
        reducer.mark_unused(0);
        reducer.mark_ready(1, pair.b);
        reducer.mark_unused(2);
        reducer.finish();
      } else {
        pair.mark_all(reducer);
        reducer.finish();
      }
      EXPECT_EQ(reducer.is_used(0), !without_first);
      EXPECT_TRUE(reducer.is_used(1));
    }
    reducer.step_empty();
    EXPECT_FALSE(reducer.is_used(1)) << "no rank had a batch";
  });
}

TEST_P(Reducer, RowsMayHaveWeightsAndMayLackEverywhere) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Pair::parameters(group), {.average_over_rows = true});
    const int size = group.size();
    {  // Rank 0 drops its batch, with the rows that it has counted.
      const Pair mine(group);
      if (group.rank() == 0) {
        const auto scope = reducer.no_sync();
        reducer.finish(7);
        reducer.step_empty();
      } else {
        mine.mark_all(reducer);
        reducer.finish(1);
      }
      const double sum = size * (size + 1) / 2 - 1;
      expect_all(content_of(group, reducer.gradient(1)), size == 1 ? 0 : sum / (size - 1));
    }
    for (const double weight : {0.5, 0.0}) {
      const Pair mine(group);
      if (weight == 0) mine.a.write(filled({3}, NAN));
      mine.mark_all(reducer);
      reducer.finish(weight * group.rank());
      const double all = weight * size * (size - 1) / 2;
      expect_all(mine.b, all == 0 ? 0 : size * (size + 1) / 2 / all);
      expect_all(mine.a, all == 0 ? 0 : size * (size + 1) / 2 / all);
    }
  });
}

}  // namespace
}  // namespace tutti::test
