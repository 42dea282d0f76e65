#include <tutti/adapters/torch/ddp.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tutti/ddp/hooks.hpp>

#include "support/errors.hpp"
#include "support/fake_backend.hpp"
#include "support/ranks.hpp"

#include "torch_network.hpp"

namespace tutti {
namespace {

using ddp::ReducerOptions;
using namespace torch_network;
using libtorch::DdpOptions;
using libtorch::DistributedDataParallel;
using test::expect_error;
using test::World;

class TorchDdp : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchDdp, testing::ValuesIn(test::worlds()), test::CaseName());

class TorchDdpOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchDdpOfSeveral, testing::ValuesIn(test::worlds_of_several()),
                         test::CaseName());

void expect_trains(const World& world, const ReducerOptions& options, bool set_to_none) {
  constexpr int steps = 10;
  const Network expected = trained_alone(steps);
  test::on_ranks(world, [&](ProcessGroup& group) {
    Network network(group.rank() + 1);  // Rank 0's values count.
    DistributedDataParallel model(group, network, {.reducer = options});
    for (int step = 0; step < steps; ++step) {
      network.zero_grad(set_to_none);
      (loss_of(model, part(batch(step), group)) * group.size()).backward();
      update(network);
    }
    expect_same_parameters(network, expected);
  });
}

TEST_P(TorchDdpOfSeveral, GoesOnOverTheRanksThatAreLeft) {
  constexpr int steps = 10;
  const Network expected = trained_alone(steps);
  for (const bool in_bucket : {false, true})
    test::on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
      Network network(group.rank() + 1);
      DistributedDataParallel model(
          group, network,
          {.reducer = {.first_bucket_cap = 64, .gradient_as_bucket_view = in_bucket}});
      auto left = group.split(group.rank() == group.size() - 1 ? -1 : 0);
      for (int step = 0; step < steps; ++step) {
        if (step == steps / 2) {
          if (!left) return;
          model.set_group(*left);
          for (const auto& parameter : network.parameters())
            EXPECT_FALSE(parameter.grad().defined());
        }
        auto& now = step < steps / 2 ? group : *left;
        network.zero_grad();
        (loss_of(model, part(batch(step), now)) * now.size()).backward();
        update(network);
      }
      expect_same_parameters(network, expected);
    });
}

TEST_P(TorchDdp, TrainsAsOneProcess) {
  expect_trains(GetParam(), {}, true);
}

TEST_P(TorchDdp, TrainsAsOneProcessWithSmallBuckets) {
  expect_trains(GetParam(), small_buckets(), false);
}

TEST_P(TorchDdp, TrainsAsOneProcessWithGradientsInTheBuckets) {
  auto options = small_buckets();
  options.gradient_as_bucket_view = true;
  expect_trains(GetParam(), options, true);
  expect_trains(GetParam(), options, false);
}

TEST_P(TorchDdp, GradientsLieInTheBucketsAndOutliveThem) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    {
      auto options = small_buckets();
      options.gradient_as_bucket_view = true;
      DistributedDataParallel model(group, network, {.reducer = options});
      for (int step = 0; step < 3; ++step) {
        network.zero_grad(false);
        (loss_of(model, part(batch(step), group)) * group.size()).backward();
        const auto parameters = network.parameters();
        for (std::size_t id = 0; id < parameters.size(); ++id)
          EXPECT_EQ(parameters[id].grad().data_ptr(), model.reducer().gradient(id).data);
      }
    }
    loss_of(expected, batch(2)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdp, ABackwardAfterTheEndOfTheModelReducesNothing) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    at::Tensor loss;
    {
      DistributedDataParallel model(group, network);
      loss = loss_of(model, part(batch(0), group));
    }
    loss.backward();
    loss_of(expected, part(batch(0), group)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdp, BucketsAreReducedWhileBackwardRuns) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1);
    DistributedDataParallel model(group, network, {.reducer = small_buckets()});
    std::vector<std::string> events;
    model.set_hook([&](ddp::Bucket& bucket) {
      events.push_back("bucket " + std::to_string(bucket.index()));
      return ddp::all_reduce_hook(bucket);
    });
    network.w1.register_hook([&](const at::Tensor&) { events.emplace_back("gradient of w1"); });
    loss_of(model, part(batch(0), group)).backward();
    ASSERT_EQ(events.size(), 5U);
    EXPECT_EQ(events[0], "bucket 0");
    EXPECT_EQ(events[3], "gradient of w1");
    EXPECT_EQ(events[4], "bucket 3");
  });
}

TEST_P(TorchDdp, RanksStartWithTheParametersAndBuffersOfRank0) {
  struct Module : Network {
    explicit Module(double seed) : Network(seed) {
      register_parameter("frozen", numbers({3}, seed), false);
      register_buffer("count", at::full({}, seed, at::kLong));
      register_buffer("none", at::Tensor());
    }
  };
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Module module(group.rank() + 1);
    const Module expected(1);
    const DistributedDataParallel model(group, module, {.broadcast_buffers = false});
    expect_same_parameters(module, expected);
    EXPECT_EQ(module.named_buffers()["count"].item<std::int64_t>(), 1);
  });
}

TEST_P(TorchDdp, TiedParametersAreReducedOnce) {
  struct Tied : Network {
    Tied() : Network(1) { register_parameter("again", w2); }
  };
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Tied network, expected;
    DistributedDataParallel model(group, network);
    EXPECT_EQ(model.reducer().parameters().size(), 4U);
    (loss_of(model, part(batch(0), group)) * group.size()).backward();
    loss_of(expected, batch(0)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdp, MicroBatchesUnderNoSyncAreOneBatch) {
  for (const bool views : {false, true})
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      Network network(1);
      Network expected(1);
      DistributedDataParallel model(group, network,
                                    {.reducer = {.gradient_as_bucket_view = views}});
      for (int step = 0; step < 3; ++step) {
        network.zero_grad(true);
        {
          const auto scope = model.no_sync();
          const auto inner = model.no_sync();
          for (int micro = 0; micro < group.rank() + 1; ++micro)  // Their number may differ.
            (loss_of(model, part(batch(step), group)) * group.size() / (group.rank() + 1))
                .backward();
        }
        // The hidden layer has gradients of the other micro-batches alone.
        (loss_of(model, part(batch(step + 1), group), false) * group.size()).backward();
        expected.zero_grad(true);
        (loss_of(expected, batch(step)) + loss_of(expected, batch(step + 1), false)).backward();
        expect_same_gradients(network, expected);
      }
    });
}

TEST_P(TorchDdp, TheMeanIsOverTheRowsOfAllRanksAndMicroBatches) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    auto options = small_buckets();
    options.average_over_rows = true;
    DistributedDataParallel model(group, network, {.reducer = options});
    const at::Tensor mine = part(batch(0), group);
    const auto backward = [&](const at::Tensor& rows) {
      model.add_rows(static_cast<double>(rows.size(0)));
      (loss_of(model, rows) * batch_rows).backward();  // The sum over the rows.
    };
    {
      const auto scope = model.no_sync();
      backward(mine.narrow(0, 0, 1));
    }
    backward(mine.narrow(0, 1, mine.size(0) - 1));
    loss_of(expected, batch(0)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdpOfSeveral, ParametersMayBeUnusedOnSomeRanks) {
  for (const bool views : {false, true})
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      Network network(1);
      DistributedDataParallel model(
          group, network,
          {.reducer = {.find_unused_parameters = true, .gradient_as_bucket_view = views}});
      const int last = group.size() - 1;
      for (int step = 0; step < 3; ++step) {
        network.zero_grad(true);
        loss_of(model, batch(step), group.rank() != last).backward();
        Network used(1), unused(1);
        loss_of(used, batch(step)).backward();
        loss_of(unused, batch(step), false).backward();
        torch_network::expect_near(network.b1.grad(), used.b1.grad() * last / group.size());
        torch_network::expect_near(network.w1.grad(), used.w1.grad() * last / group.size());
        torch_network::expect_near(network.w2.grad(), unused.w2.grad());
      }
      network.zero_grad(true);
      loss_of(model, batch(0), false).backward();
      EXPECT_FALSE(network.w1.grad().defined());  // No rank used it.
      EXPECT_TRUE(network.b2.grad().defined());
    });
}

TEST_P(TorchDdpOfSeveral, AMissingGradientIsNamedOnEveryRank) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    DistributedDataParallel model(group, network, {.reducer = small_buckets()});
    const int last = group.size() - 1;
    if (group.rank() == last)
      expect_error(Errc::invalid_argument, {"parameter 0 'w1' and 1 more have no gradient"},
                   [&] { loss_of(model, batch(0), false).backward(); });
    else
      expect_error(Errc::mismatch, {"rank " + std::to_string(last) + ": ", "'w1'"},
                   [&] { loss_of(model, batch(0)).backward(); });
    network.zero_grad(true);
    (loss_of(model, part(batch(1), group)) * group.size()).backward();
    loss_of(expected, batch(1)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdp, AnInterruptedBackwardIsNamedByTheNextOne) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    DistributedDataParallel model(group, network, {.reducer = small_buckets()});
    const auto key = network.w1.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      if (gradient.defined()) throw std::runtime_error("interrupted");
      return gradient;
    });
    EXPECT_THROW(loss_of(model, batch(0)).backward(), std::exception);
    network.w1.remove_hook(key);
    expect_error(Errc::invalid_argument, {"was marked twice"},
                 [&] { loss_of(model, batch(0)).backward(); });
    network.zero_grad(true);
    (loss_of(model, part(batch(1), group)) * group.size()).backward();
    loss_of(expected, batch(1)).backward();
    expect_same_gradients(network, expected);
  });
}

TEST_P(TorchDdp, AHookReplacesTheReduction) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Network network(1), expected(1);
    DistributedDataParallel model(group, network);
    libtorch::register_ddp_comm_hook(model, ddp::all_reduce_hook, ddp::fp16_compress_wrapper);
    (loss_of(model, part(batch(0), group)) * group.size()).backward();
    loss_of(expected, batch(0)).backward();
    torch_network::expect_near(network.w1.grad(), expected.w1.grad(),
                               4e-3);  // Gradients below 2, 11 bits each.
    EXPECT_FALSE(network.w1.grad().equal(expected.w1.grad()));
  });
}

TEST_P(TorchDdpOfSeveral, ForwardSendsTheBuffersOfRank0) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Counting module;
    DistributedDataParallel model(group, module);
    const auto rows = [&](int rank) { return at::full({2, 8}, rank + 1.0, at::kDouble); };
    loss_of(model, rows(group.rank())).backward();
    loss_of(model, rows(group.rank())).backward();
    EXPECT_EQ(module.seen, 12);  // 2 rows of 6 inputs.
    {
      const c10::NoGradGuard off;  // Ranks need not evaluate together.
      if (group.rank() == 1) model.forward(rows(1).narrow(1, 0, 6));
    }
    EXPECT_EQ(module.seen, group.rank() == 1 ? 24 : 12);
    const auto scope = model.no_sync();
    for (int micro = 0; micro <= group.rank(); ++micro) loss_of(model, rows(2)).backward();
  });
}

TEST_P(TorchDdpOfSeveral, BuffersStayApartWhenTheyAreNotSent) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    Counting module;
    DistributedDataParallel model(group, module, {.broadcast_buffers = false});
    for (int step = 0; step < 2; ++step)
      loss_of(model, at::full({2, 8}, group.rank() + 1.0, at::kDouble)).backward();
    EXPECT_EQ(module.seen, 12.0 * (group.rank() + 1));
  });
}

TEST(TorchDdpArguments, ABufferThatMovedIsRefused) {
  test::on_ranks({"local", 2, false}, [](ProcessGroup& group) {
    Counting module;
    DistributedDataParallel model(group, module);
    module.sum.set_data(at::zeros({}, at::kDouble));
    expect_error(Errc::invalid_argument, {"memory of a buffer"}, [&] { loss_of(model, batch(0)); });
  });
}

TEST(TorchDdpArguments, AParameterThatIsNotContiguousIsRefused) {
  struct Turned : ::torch::nn::Module {
    Turned() { register_parameter("turned", numbers({2, 3}, 1).t()); }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  test::on_ranks({"local", 2, false}, [](ProcessGroup& group) {
    Turned module;
    expect_error(Errc::invalid_argument, {"strides [1, 3]"},
                 [&] { DistributedDataParallel model(group, module); });
  });
}

TEST(TorchDdpArguments, AModuleOnAnotherDeviceThanTheGroupIsRefused) {
  const auto store = make_memory_store();
  test::FakeDevice device(0);
  ProcessGroup group =
      ProcessGroup::create({.store = store, .rank = 0, .size = 1},
                           std::make_unique<test::FakeBackend>(
                               device, BackendInit{.store = make_prefix_store(store, "in/"),
                                                   .rank = 0,
                                                   .size = 1,
                                                   .name = "fake",
                                                   .timeout = test::group_timeout,
                                                   .logger = default_logger()}));
  Network network(1);
  expect_error(Errc::invalid_argument, {"w1", "cpu", to_string(device.device())},
               [&] { DistributedDataParallel model(group, network); });
}

TEST(TorchDdpArguments, ASparseGradientAbortsTheGroup) {
  struct Table : ::torch::nn::Module {
    Table() : table(register_parameter("table", numbers({4, 3}, 1))) {}
    at::Tensor forward(const at::Tensor& ids, bool sparse) {
      return at::embedding(table, ids, -1, false, sparse);
    }
    at::Tensor table;
  };
  test::on_fresh_ranks({"local", 3, false}, [](ProcessGroup& group) {
    Table module;
    DistributedDataParallel model(group, module);
    const auto backward = [&] { model.forward(at::arange(2), group.rank() == 2).sum().backward(); };
    if (group.rank() == 2)
      expect_error(Errc::invalid_argument, {"gradient of table", "sparse"}, backward);
    else
      expect_error(Errc::aborted, {"gradient of table", "sparse"}, backward);
  });
}

TEST_P(TorchDdp, RanksMayHaveDifferentNumbersOfBatches) {
  for (const bool views : {false, true})
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      Counting module;
      Network expected(1);
      DistributedDataParallel model(group, module, {.reducer = {.gradient_as_bucket_view = views}});
      auto join = model.join();
      const int size = group.size();
      const auto has_batch = [&](int rank, int step) { return step < size - rank; };
      int step = 0;
      for (; model.next(join, has_batch(group.rank(), step)); ++step) {
        if (has_batch(group.rank(), step)) {
          module.zero_grad(true);
          loss_of(model, batch(step + group.rank())).backward();
        }
        expected.zero_grad(true);
        for (int rank = 0; has_batch(rank, step) && rank < size; ++rank)
          (loss_of(expected, batch(step + rank)) / size).backward();
        expect_same_gradients(module, expected);
        update(module);
        update(expected);
      }
      EXPECT_EQ(step, size);
    });
}

}  // namespace
}  // namespace tutti
