#include <tutti/ddp/sharded_update.hpp>

#include "conformance/ddp/host_network.hpp"

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::ReducerOptions;
using ddp::Shard;
using ddp::ShardedUpdate;

class Sharded : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Sharded, testing::ValuesIn(worlds()), CaseName());

class ShardedOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ShardedOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr unsigned steps = 12;

/// Updates with momentum: one number of state per element.
template <typename T>
void update(std::span<T> parameter, std::span<const T> gradient, std::span<T> state) {
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    state[i] = T(0.9) * state[i] + gradient[i];
    parameter[i] -= T(0.05) * state[i];
  }
}

template <typename T>
std::span<T> span_of(const TensorView& view) {
  return {static_cast<T*>(view.data), static_cast<std::size_t>(view.shape.numel())};
}
template <typename T>
std::span<const T> span_of(const ConstTensorView& view) {
  return {static_cast<const T*>(view.data), static_cast<std::size_t>(view.shape.numel())};
}

/// An optimizer with the state of this rank's shards only.
template <typename T>
class Optimizer {
 public:
  explicit Optimizer(GradientReducer& reducer) : sharded_(reducer) {}
  ShardedUpdate& sharded() { return sharded_; }
  void step() {
    sharded_.step(
        [&](const Shard& shard, const TensorView& parameter, const ConstTensorView& gradient) {
          if (state_.empty()) state_.resize(static_cast<std::size_t>(sharded_.state_size()));
          update<T>(span_of<T>(parameter), span_of<T>(gradient),
                    std::span(state_).subspan(static_cast<std::size_t>(shard.state_first),
                                              static_cast<std::size_t>(shard.count)));
        });
  }

 private:
  ShardedUpdate sharded_;
  std::vector<T> state_;
};

template <typename T>
HostNetwork<T> train_unsharded(ProcessGroup& group, const ReducerOptions& options) {
  HostNetwork<T> network(1);
  GradientReducer reducer(group, network.parameters(), options);
  auto states = network.gradients;  // Zeros.
  for (unsigned step = 0; step < steps; ++step) {
    network.step(reducer, group, step);
    for (std::size_t id = 0; id < 4; ++id)
      update<T>(network.values[id], std::span<const T>(network.gradients[id]), states[id]);
  }
  return network;
}

template <typename T>
HostNetwork<T> train_sharded(ProcessGroup& group, const ReducerOptions& options) {
  HostNetwork<T> network(group.rank() == 0 ? 1U : 7U);
  GradientReducer reducer(group, network.parameters(), options);
  Optimizer<T> optimizer(reducer);
  for (unsigned step = 0; step < steps; ++step) {
    network.step(reducer, group, step);
    optimizer.step();
  }
  return network;
}

/// Expects the same bits with and without shards.
template <typename T>
void expect_same_bits(const World& world, const ReducerOptions& options) {
  on_ranks(world, [&](ProcessGroup& group) {
    const auto want = train_unsharded<T>(group, options);
    const auto got = train_sharded<T>(group, options);
    EXPECT_TRUE(got.values == want.values)
        << "the parameters differ by " << distance(got, want) << " from those without shards";
  });
}

TEST_P(Sharded, ParametersHaveTheBitsOfTheUnshardedUpdate) {
  auto options = small_buckets();
  options.order_fixed = true;
  expect_same_bits<double>(GetParam(), options);
  expect_same_bits<float>(GetParam(), options);
  options.rebuild_buckets = false;
  expect_same_bits<float>(GetParam(), options);
  options.check_steps = false;
  options.divisor = 5;
  expect_same_bits<float>(GetParam(), options);
  expect_same_bits<float>(GetParam(), {.find_unused_parameters = true, .order_fixed = true});
}

TEST_P(Sharded, WithoutAFixedOrderParametersAreClose) {
  const bool fixed = always_order_fixed(GetParam().backend);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto want = train_unsharded<double>(group, {});
    const auto got = train_sharded<double>(group, {});
    EXPECT_LE(distance(got, want), fixed ? 0 : 1e-12);
  });
}

TEST_P(Sharded, GradientsMayLiveInTheBuckets) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    auto options = small_buckets();
    options.order_fixed = true;
    const auto want = train_unsharded<float>(group, options);
    options.gradient_as_bucket_view = true;
    HostNetwork<float> network(1);
    GradientReducer reducer(group, network.parameters(), options);
    Optimizer<float> optimizer(reducer);
    const double weight = static_cast<double>(group.size()) / rows_of_batch;
    for (unsigned step = 0; step < steps; ++step) {
      const auto rows = uneven_split(group.size(), step);
      network.zero_gradients();
      network.backward(step, offset(rows, group.rank()), rows[index(group.rank())], weight,
                       [&](std::size_t id) {
                         const TensorView place = reducer.gradient(id);
                         std::memcpy(place.data, network.gradients[id].data(), place.bytes());
                         reducer.mark_ready(id, place);
                       });
      reducer.finish();
      optimizer.step();
    }
    EXPECT_TRUE(network.values == want.values) << "the parameters differ";
  });
}

/// Parameters of several sizes and dtypes, one of them empty.
struct Model {
  Model() : a(4000, 1), b(77, 2), c(1000, 3), none() {}
  std::vector<ddp::Parameter> parameters() {
    return {
        {"a", view(a, {40, 100})}, {"b", view(b, {77})}, {"c", view(c, {1000})}, {"none", none}};
  }
  std::vector<float> a;
  std::vector<float> b;
  std::vector<double> c;
  std::vector<float> none;
  static constexpr std::int64_t numel = 4000 + 77 + 1000;
};

TEST_P(Sharded, EachElementIsUpdatedByOneRankAndTheStateIsDivided) {
  const int size = GetParam().size;
  PerRank<std::vector<Shard>> shards(size);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    Model model;
    GradientReducer reducer(group, model.parameters(), {.bucket_cap = 8000});
    ShardedUpdate sharded(reducer);
    EXPECT_TRUE(sharded.shards().empty());
    for (int step = 0; step < 3; ++step) {
      Model gradients;
      const auto views = gradients.parameters();
      for (std::size_t id : {2U, 3U, 0U, 1U}) reducer.mark_ready(id, views[id].value);
      reducer.finish();
      std::int64_t next = 0;
      sharded.step([&](const Shard& shard, const TensorView& parameter,
                       const ConstTensorView& gradient) {
        EXPECT_EQ(shard.state_first, next);
        next += shard.count;
        EXPECT_EQ(parameter.shape, Shape({shard.count}));
        EXPECT_EQ(gradient.shape, parameter.shape);
        const auto* const whole = static_cast<std::byte*>(model.parameters()[shard.id].value.data);
        EXPECT_EQ(parameter.data,
                  whole + static_cast<std::size_t>(shard.first) * size_of(parameter.dtype));
        if (parameter.dtype == DType::f64)
          for (double& v : span_of<double>(parameter)) v += 1;
        else
          for (float& v : span_of<float>(parameter)) v += 1;
      });
      EXPECT_EQ(next, sharded.state_size());
    }
    for (const float v : model.a) ASSERT_EQ(v, 4);
    for (const float v : model.b) ASSERT_EQ(v, 5);
    for (const double v : model.c) ASSERT_EQ(v, 6);
    EXPECT_LE(sharded.state_size(), Model::numel / group.size() + 100);
    shards[group.rank()].assign(sharded.shards().begin(), sharded.shards().end());
  });
  std::int64_t elements = 0;
  for (const auto& mine : shards.all())
    for (const Shard& shard : mine) elements += shard.count;
  EXPECT_EQ(elements, Model::numel);
}

// With step_empty() on all ranks the gradients are 0, and the momentum continues.
TEST_P(Sharded, AStepWithoutBatchesIsAStep) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    HostNetwork<double> network(1);
    auto options = small_buckets();
    options.order_fixed = true;
    GradientReducer reducer(group, network.parameters(), options);
    Optimizer<double> optimizer(reducer);
    network.step(reducer, group, 0);
    optimizer.step();
    const auto before = network.values;
    reducer.step_empty();
    optimizer.step();
    EXPECT_FALSE(network.values == before);
  });
}

TEST_P(Sharded, AStepNeedsOneOfTheReducer) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters());
    Optimizer<double> optimizer(reducer);
    const auto refused = [&] {
      expect_error(Errc::invalid_argument,
                   {"ShardedUpdate::step: the reducer has ended no step", "call finish()"},
                   [&] { optimizer.step(); });
    };
    refused();
    network.step(reducer, group, 0);
    expect_error(Errc::invalid_argument, {"ShardedUpdate::step", "the update is empty"},
                 [&] { optimizer.sharded().step({}); });
    optimizer.step();
    refused();
    {
      const auto scope = reducer.no_sync();
      network.step(reducer, group, 1);
    }
    refused();
    network.step(reducer, group, 1);
    optimizer.step();
  });
}

TEST_P(Sharded, ParametersNeedData) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    GradientReducer reducer(group, {{"a", {nullptr, DType::f32, {3}}}});
    expect_error(Errc::invalid_argument, {"ShardedUpdate", "'a' has no data"},
                 [&] { const ShardedUpdate sharded(reducer); });
  });
}

TEST_P(Sharded, WithoutTheObjectGradientsAreAllReduced) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    std::vector<double> parameter(100, 1);
    GradientReducer reducer(group, {{"a", parameter}});
    const auto step = [&] {
      std::vector<double> gradient(100, group.rank());
      reducer.mark_ready(0, gradient);
      reducer.finish();
      return gradient;
    };
    {
      ShardedUpdate sharded(reducer);
      for (int i = 0; i < 2; ++i) {
        (void)step();
        sharded.step([](const Shard&, const TensorView&, const ConstTensorView&) {});
      }
    }
    for (const double v : step()) EXPECT_DOUBLE_EQ(v, (group.size() - 1) / 2.0);
  });
}

TEST_P(ShardedOfSeveral, AMistakeEndsTheStepOnAllRanksAndTheNextOneIsRight) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    auto options = small_buckets();
    options.order_fixed = true;
    const auto want = train_unsharded<double>(group, options);
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters(), options);
    Optimizer<double> optimizer(reducer);
    for (unsigned step = 0; step < steps; ++step) {
      if (step == 4)
        expect_error({Errc::invalid_argument, Errc::mismatch}, {"'b2' was marked twice"}, [&] {
          reducer.mark_ready(3, network.gradient(3));
          if (group.rank() == 0) reducer.mark_ready(3, network.gradient(3));
          for (const std::size_t id : {2U, 1U, 0U}) reducer.mark_ready(id, network.gradient(id));
          reducer.finish();
        });
      network.step(reducer, group, step);
      optimizer.step();
    }
    EXPECT_TRUE(network.values == want.values) << "the parameters differ";
  });
}

TEST_P(ShardedOfSeveral, WhatTheUpdateThrowsAbortsTheGroup) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters(), small_buckets());
    ShardedUpdate sharded(reducer);
    network.step(reducer, group, 0);
    const bool wrong = group.rank() == group.size() - 1;
    try {
      sharded.step([&](const Shard&, const TensorView&, const ConstTensorView&) {
        if (wrong) throw std::runtime_error("no memory for the state");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_FALSE(wrong);
      EXPECT_TRUE(error.code() == Errc::aborted || error.code() == Errc::peer_lost) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(wrong);
      EXPECT_STREQ(error.what(), "no memory for the state");
    }
  });
}

}  // namespace
}  // namespace tutti::test
