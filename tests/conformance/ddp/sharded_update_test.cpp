#include <tutti/ddp/sharded_update.hpp>

#include "conformance/ddp/network.hpp"
#include "conformance/observed.hpp"

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

constexpr unsigned sharded_steps = 12;

/// Updates with momentum: one number of state per element.
template <typename T>
void update(std::span<T> parameter, std::span<const T> gradient, std::span<T> state) {
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    state[i] = T(0.9) * state[i] + gradient[i];
    parameter[i] -= T(0.05) * state[i];
  }
}

template <typename T>
std::vector<T> read(ProcessGroup& group, const ConstTensorView& from) {
  return values_of<T>(content_of(group, from));
}
template <typename T>
void write(ProcessGroup& group, const TensorView& to, const std::vector<T>& values) {
  group.memory().copy(to.data, values.data(), to.bytes(), {});
}

/// An optimizer with the state of this rank's shards only.
template <typename T>
class Optimizer {
 public:
  Optimizer(ProcessGroup& group, GradientReducer& reducer) : group_(group), sharded_(reducer) {}
  ShardedUpdate& sharded() { return sharded_; }
  void step() {
    sharded_.step(
        [&](const Shard& shard, const TensorView& parameter, const ConstTensorView& gradient) {
          if (state_.empty()) state_.resize(static_cast<std::size_t>(sharded_.state_size()));
          auto values = read<T>(group_, parameter);
          update<T>(values, read<T>(group_, gradient),
                    std::span(state_).subspan(static_cast<std::size_t>(shard.state_first),
                                              static_cast<std::size_t>(shard.count)));
          write(group_, parameter, values);
        });
  }

 private:
  ProcessGroup& group_;
  ShardedUpdate sharded_;
  std::vector<T> state_;
};

template <typename T>
Network<T> train_unsharded(ProcessGroup& group, const ReducerOptions& options) {
  Network<T> network(1);
  Staged<T> staged(group, network);
  GradientReducer reducer(group, staged.parameters(), options);
  auto states = network.gradients;  // Zeros.
  for (unsigned step = 0; step < sharded_steps; ++step) {
    staged.step(reducer, step);
    for (std::size_t id = 0; id < 4; ++id)
      update<T>(network.values[id], std::span<const T>(network.gradients[id]), states[id]);
  }
  return network;
}

template <typename T>
Network<T> train_sharded(ProcessGroup& group, const ReducerOptions& options) {
  Network<T> network(group.rank() == 0 ? 1U : 7U);
  Staged<T> staged(group, network);
  GradientReducer reducer(group, staged.parameters(), options);
  staged.fetch_values();
  Optimizer<T> optimizer(group, reducer);
  for (unsigned step = 0; step < sharded_steps; ++step) {
    staged.step(reducer, step);
    optimizer.step();
    staged.fetch_values();
  }
  return network;
}

/// Options for small buckets, and sums in a fixed order where the backend has one.
ReducerOptions fixed_order(const World& world) {
  auto options = small_buckets();
  options.order_fixed = can_fix_order(world.backend);
  return options;
}

/// Expects the same bits if the order of sums is fixed.
template <typename T>
void expect_same(const World& world, const Network<T>& got, const Network<T>& want) {
  const double rounding = std::is_same_v<T, float> ? 1e-5 : 1e-12;
  EXPECT_LE(distance(got, want), can_fix_order(world.backend) ? 0 : rounding)
      << "the parameters differ";
}

/// Expects the same bits with and without shards.
template <typename T>
void expect_same_bits(const World& world, const ReducerOptions& options) {
  on_ranks(world, [&](ProcessGroup& group) {
    const auto want = train_unsharded<T>(group, options);
    const auto got = train_sharded<T>(group, options);
    expect_same(world, got, want);
  });
}

TEST_P(Sharded, ParametersHaveTheBitsOfTheUnshardedUpdate) {
  auto options = fixed_order(GetParam());
  expect_same_bits<double>(GetParam(), options);
  expect_same_bits<float>(GetParam(), options);
  options.rebuild_buckets = false;
  expect_same_bits<float>(GetParam(), options);
  options.check_steps = false;
  options.divisor = 5;
  expect_same_bits<float>(GetParam(), options);
  expect_same_bits<float>(GetParam(), {.find_unused_parameters = true,
                                       .order_fixed = can_fix_order(GetParam().backend)});
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
    auto options = fixed_order(GetParam());
    const auto want = train_unsharded<float>(group, options);
    options.gradient_as_bucket_view = true;
    Network<float> network(1);
    Staged<float> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), options);
    Optimizer<float> optimizer(group, reducer);
    const double weight = static_cast<double>(group.size()) / rows_of_batch;
    for (unsigned step = 0; step < sharded_steps; ++step) {
      const auto rows = uneven_split(group.size(), step);
      network.zero_gradients();
      network.backward(step, offset(rows, group.rank()), rows[index(group.rank())], weight,
                       [&](std::size_t id) {
                         const TensorView place = reducer.gradient(id);
                         write(group, place, network.gradients[id]);
                         reducer.mark_ready(id, place);
                       });
      reducer.finish();
      optimizer.step();
      staged.fetch_values();
    }
    expect_same(GetParam(), network, want);
  });
}

/// Parameters of several sizes and dtypes, one of them empty.
struct Model {
  explicit Model(ProcessGroup& group)
      : a(group, filled<float>(4000, 1)),
        b(group, filled<float>(77, 2)),
        c(group, filled<double>(1000, 3)),
        none(group, DType::f32, {0}) {}
  template <typename T>
  static Array filled(std::size_t count, T value) {
    return array_of<T>(std::vector<T>(count, value));
  }
  std::vector<ddp::Parameter> parameters() const {
    TensorView matrix = a;
    matrix.shape = {40, 100};
    return {{"a", matrix}, {"b", b}, {"c", c}, {"none", none}};
  }
  Buffer a;
  Buffer b;
  Buffer c;
  Buffer none;
  static constexpr std::int64_t numel = 4000 + 77 + 1000;
};

TEST_P(Sharded, EachElementIsUpdatedByOneRankAndTheStateIsDivided) {
  const int size = GetParam().size;
  PerRank<std::vector<Shard>> shards(size);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const Model model(group);
    GradientReducer reducer(group, model.parameters(), {.bucket_cap = 8000});
    ShardedUpdate sharded(reducer);
    EXPECT_TRUE(sharded.shards().empty());
    for (int step = 0; step < 3; ++step) {
      const Model gradients(group);
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
        const auto add_one = [&]<typename T>(std::vector<T> values) {
          for (T& v : values) v += 1;
          write(group, parameter, values);
        };
        if (parameter.dtype == DType::f64)
          add_one(read<double>(group, parameter));
        else
          add_one(read<float>(group, parameter));
      });
      EXPECT_EQ(next, sharded.state_size());
    }
    EXPECT_TRUE(same(model.a.read(), Model::filled<float>(4000, 4)));
    EXPECT_TRUE(same(model.b.read(), Model::filled<float>(77, 5)));
    EXPECT_TRUE(same(model.c.read(), Model::filled<double>(1000, 6)));
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
    Network<double> network(1);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), small_buckets());
    Optimizer<double> optimizer(group, reducer);
    staged.step(reducer, 0);
    optimizer.step();
    staged.fetch_values();
    const auto before = network.values;
    reducer.step_empty();
    optimizer.step();
    staged.fetch_values();
    EXPECT_FALSE(network.values == before);
  });
}

TEST_P(Sharded, AStepNeedsOneOfTheReducer) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    Network<double> network(1);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters());
    Optimizer<double> optimizer(group, reducer);
    const auto refused = [&] {
      expect_error(Errc::invalid_argument,
                   {"ShardedUpdate::step: the reducer has ended no step", "call finish()"},
                   [&] { optimizer.step(); });
    };
    refused();
    staged.step(reducer, 0);
    expect_error(Errc::invalid_argument, {"ShardedUpdate::step", "the update is empty"},
                 [&] { optimizer.sharded().step({}); });
    optimizer.step();
    refused();
    {
      const auto scope = reducer.no_sync();
      staged.step(reducer, 1);
    }
    refused();
    staged.step(reducer, 1);
    optimizer.step();

    staged.step(reducer, 2);
    staged.mark(reducer, 3);
    expect_error(Errc::invalid_argument, {"ShardedUpdate::step", "has not ended", "call finish()"},
                 [&] { optimizer.step(); });
    for (const std::size_t id : {2U, 1U, 0U}) staged.mark(reducer, id);
    reducer.finish();
    optimizer.step();
  });
}

TEST_P(Sharded, ParametersNeedData) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    GradientReducer reducer(group, {{"a", {nullptr, DType::f32, {3}, group.memory().device()}}});
    expect_error(Errc::invalid_argument, {"ShardedUpdate", "'a' has no data"},
                 [&] { const ShardedUpdate sharded(reducer); });
  });
}

TEST_P(Sharded, WithoutTheObjectGradientsAreAllReduced) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer parameter(group, Model::filled<double>(100, 1));
    GradientReducer reducer(group, {{"a", parameter}});
    const auto step = [&] {
      const Buffer gradient(group, Model::filled<double>(100, group.rank()));
      reducer.mark_ready(0, gradient);
      reducer.finish();
      return read<double>(group, gradient);
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
    auto options = fixed_order(GetParam());
    const auto want = train_unsharded<double>(group, options);
    Network<double> network(1);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), options);
    Optimizer<double> optimizer(group, reducer);
    for (unsigned step = 0; step < sharded_steps; ++step) {
      if (step == 0 || step == 4) {  // Before and after the buckets are rebuilt.
        expect_error({Errc::invalid_argument, Errc::mismatch}, {"'b2' was marked twice"}, [&] {
          staged.mark(reducer, 3);
          if (group.rank() == 0) staged.mark(reducer, 3);
          for (const std::size_t id : {2U, 1U, 0U}) staged.mark(reducer, id);
          reducer.finish();
        });
        // A program may have ignored the error.
        expect_error(Errc::invalid_argument, {"ShardedUpdate::step", "ended with an error"},
                     [&] { optimizer.step(); });
      }
      staged.step(reducer, step);
      optimizer.step();
      staged.fetch_values();
    }
    expect_same(GetParam(), network, want);
  });
}

TEST_P(ShardedOfSeveral, WhatTheUpdateThrowsAbortsTheGroup) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Network<double> network(1);
    Staged<double> staged(group, network);
    GradientReducer reducer(group, staged.parameters(), small_buckets());
    ShardedUpdate sharded(reducer);
    staged.step(reducer, 0);
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
