#include <tutti/adapters/torch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <tutti/adapters/torch/ddp.hpp>
#include <tutti/adapters/torch/feature_losses.hpp>
#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/power_sgd.hpp>

#include "backends/nccl/double/bare_rank.hpp"
#include "support/errors.hpp"

#include "fake_cuda.hpp"
#include "torch_calls.hpp"
#include "torch_network.hpp"

// Tensors of the device type cuda, over the double. Each test also fails if the double sees an
// array that is used without an order on the streams, or memory that is left.

namespace tutti::test {
namespace {

using namespace torch_network;
using libtorch::DistributedDataParallel;

std::vector<CudaWorld> worlds_of_cuda() {
  return {{"nccl", 1}, {"nccl", 2}, {"nccl", 3}, {"local", 2}};
}

struct Case {
  TorchCall call;
  CudaWorld world;
};
std::string name_of(const Case& c) {
  return c.call.name + "_" + to_string(c.world);
}
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c);
}
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const TorchCall& call : torch_calls()) {
    for (const CudaWorld& world : worlds_of_cuda()) {
      if (world.size < call.least_ranks) continue;
      all.push_back({call, world});
    }
  }
  return all;
}

class OverDouble : public nccl_double::Double {
 protected:
  OverDouble() { nccl_double::set_messages_side_by_side(true); }  // As the conformance suite.
};

class TorchCalls : public OverDouble, public testing::WithParamInterface<Case> {};
INSTANTIATE_TEST_SUITE_P(Cuda, TorchCalls, testing::ValuesIn(cases()),
                         [](const auto& of) { return name_of(of.param); });

TEST_P(TorchCalls, OfTensorsOnADeviceEqualOneProcessToTheSecondDerivative) {
  const auto& [call, world] = GetParam();
  const Tensors inputs = inputs_of(call, world.size);
  const Derivatives expected = derivatives_at_once(call, inputs);
  on_cuda_ranks(world, [&](ProcessGroup& group, c10::Device device) {
    expect_equals_one_process(call, group, inputs, expected, device);
  });
}

class TorchDevice : public OverDouble, public testing::WithParamInterface<CudaWorld> {};
INSTANTIATE_TEST_SUITE_P(Cuda, TorchDevice, testing::ValuesIn(worlds_of_cuda()),
                         [](const auto& of) { return to_string(of.param); });

TEST_P(TorchDevice, GathersOfOtherPackagesStayOnTheDevice) {
  on_cuda_ranks(GetParam(), [](ProcessGroup& group, c10::Device device) {
    const int size = group.size();
    const auto expect_is = [&](const at::Tensor& actual, const at::Tensor& expected) {
      EXPECT_EQ(actual.device(), device);
      EXPECT_TRUE(actual.cpu().equal(expected)) << actual;
    };
    const at::Tensor rows = pattern({2 * size, 3}, 0);
    const at::Tensor x = leaf(rows.narrow(0, 2 * group.rank(), 2).to(device));
    const at::Tensor all = libtorch::all_gather_with_grad(x, &group);
    expect_is(all, rows);
    EXPECT_EQ(all.is_same(x), size == 1);
    (all * rows.to(device)).sum().backward();
    expect_is(x.grad(), size * rows.narrow(0, 2 * group.rank(), 2));
    expect_is(libtorch::all_gather_no_grad(at::full({1}, group.rank(), device), &group),
              at::arange(size));
    for (const bool grads : {false, true})
      expect_is(libtorch::all_gather_ddp_if_available(x, &group, grads), rows.view({size, 2, 3}));
    const auto each = libtorch::gather_all_tensors(at::full({group.rank()}, 1, device), &group);
    for (int rank = 0; rank < size; ++rank)
      expect_is(each[static_cast<std::size_t>(rank)], at::full({rank}, 1));
  });
}

TEST_P(TorchDevice, ResultsBelongToTorchsAllocator) {
  on_cuda_ranks(GetParam(), [](ProcessGroup& group, c10::Device device) {
    const at::Tensor sum = libtorch::all_reduce(group, at::full({2}, 1.0, device));
    EXPECT_EQ(sum.storage().data_ptr().get_deleter(),
              c10::GetAllocator(device.type())->raw_deleter());
    EXPECT_EQ(sum.storage().nbytes(), 8U);
  });
}

TEST_F(OverDouble, NoticesAnArrayOnAnotherStream) {
  on_cuda_ranks({"nccl", 2}, [](ProcessGroup& group, c10::Device device) {
    at::Tensor x = at::full({2}, 1.0, device);
    const c10::Stream other = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    group.all_reduce(libtorch::mutable_view(x), ReduceOp::sum, {.stream = {other.native_handle()}});
    other.synchronize();
    nccl_double::cuda().stream_destroy(static_cast<cudaStream_t>(other.native_handle()));
  });
  expect_violation({"race"});
}

TEST_P(TorchDevice, AnotherStreamInTheOptionsIsRefused) {
  on_cuda_ranks(GetParam(), [](ProcessGroup& group, c10::Device device) {
    const at::Tensor x = at::full({2}, 1.0, device);
    int other = 0;
    expect_error(Errc::invalid_argument, {"options.stream", device.str(), "StreamGuard"},
                 [&] { libtorch::all_reduce(group, x, ReduceOp::sum, {.stream = {&other}}); });
    const Stream current{libtorch::detail::current_stream(device).native_handle()};
    const at::Tensor sum = libtorch::all_reduce(group, x, ReduceOp::sum, {.stream = current});
    EXPECT_EQ(sum.sum().item<double>(), 2 * group.size());
  });
}

TEST_P(TorchDevice, ATensorOfTheHostIsRefused) {
  on_cuda_ranks(GetParam(), [](ProcessGroup& group, c10::Device device) {
    const at::Tensor x = pattern({2}, 0);
    const std::vector<std::string> both{"cpu", device.str()};
    expect_error(Errc::invalid_argument, both, [&] { libtorch::all_reduce(group, x); });
    expect_error(Errc::invalid_argument, both,
                 [&] { libtorch::all_gather_rows(group, x, GradScale::sum); });
    expect_error({Errc::invalid_argument, Errc::mismatch}, {"cpu"},
                 [&] { libtorch::all_gather_ddp_if_available(x, &group); });
    Network network(1);
    expect_error(Errc::invalid_argument, both,
                 [&] { DistributedDataParallel model(group, network); });
  });
}

TEST(TorchDeviceOfTheHost, ATensorOfADeviceIsRefused) {
  on_ranks({"local", 2, false}, [](ProcessGroup& group) {
    const c10::Device device(c10::kCUDA, 0);
    const at::Tensor x = pattern({2}, 0).to(device);
    const std::vector<std::string> both{"cpu", device.str()};
    expect_error(Errc::invalid_argument, both, [&] { libtorch::all_reduce(group, x); });
    expect_error(Errc::invalid_argument, both,
                 [&] { libtorch::all_gather_rows(group, x, GradScale::sum); });
    Network network(1);
    network.to(device);
    expect_error(Errc::invalid_argument, both,
                 [&] { DistributedDataParallel model(group, network); });
  });
}

void expect_trains(const CudaWorld& world, const ddp::ReducerOptions& options, bool other_stream) {
  constexpr int steps = 3;  // The second has other buckets than the first.
  const Network expected = trained_alone(steps);
  on_cuda_ranks(world, [&](ProcessGroup& group, c10::Device device) {
    Network network(group.rank() + 1);  // Rank 0's values count.
    network.to(device);
    libtorch::detail::synchronize(device);
    const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    {
      const c10::Stream main = libtorch::detail::current_stream(device);
      // Gradients are accumulated on the stream that is current here.
      c10::StreamGuard guard(other_stream ? side : main);
      DistributedDataParallel model(group, network, {.reducer = options});
      guard.reset_stream(main);
      for (int step = 0; step < steps; ++step) {
        network.zero_grad();
        const at::Tensor rows = part(batch(step), group).to(device);
        (loss_of(model, rows) * group.size()).backward();
        update(network);
      }
    }
    network.zero_grad();
    libtorch::detail::synchronize(device);
    side.synchronize();
    nccl_double::cuda().stream_destroy(static_cast<cudaStream_t>(side.native_handle()));
    expect_same_parameters(network, expected);
  });
}

TEST_P(TorchDevice, DdpTrainsAsOneProcessOnTheHost) {
  for (const bool views : {false, true})
    for (const bool check : {false, true}) {
      SCOPED_TRACE(std::string(views ? "views" : "copies") + (check ? ", checked" : ""));
      auto options = small_buckets();
      options.gradient_as_bucket_view = views;
      options.check_steps = check;
      expect_trains(GetParam(), options, views != check);
    }
}

TEST_P(TorchDevice, DdpCopiesBuffersAndRanksMayLackGradients) {
  for (const bool lacks : {false, true})
    on_cuda_ranks(GetParam(), [&](ProcessGroup& group, c10::Device device) {
      Counting network;
      network.to(device);
      DistributedDataParallel model(
          group, network, {.reducer = {.find_unused_parameters = lacks, .check_steps = lacks}});
      const int lacking = lacks && group.size() > 1 ? group.size() - 1 : -1;
      double seen = 0;
      for (int step = 0; step < 3; ++step) {
        network.zero_grad();
        loss_of(model, batch(step).to(device), group.rank() != lacking).backward();
        EXPECT_NEAR(network.seen, seen, 1e-12);
        seen = batch(step).narrow(1, 0, 6).sum().item<double>();
        Network used(1);
        loss_of(used, batch(step)).backward();
        const double share = lacking < 0 ? 1 : static_cast<double>(lacking) / group.size();
        torch_network::expect_near(network.b1.grad(), used.b1.grad() * share);
        torch_network::expect_near(network.w2.grad(), used.w2.grad());
      }
      network.zero_grad();
      model.step_empty();
      const at::Tensor& none = network.w1.grad();
      EXPECT_EQ(none.defined(), !lacks);  // Otherwise all ranks know that none had it.
      EXPECT_TRUE(!none.defined() || none.eq(0).all().item<bool>());
    });
}

TEST_P(TorchDevice, LossesOverFeaturesStayOnTheDevice) {
  const int size = GetParam().size;
  using Loss = std::function<at::Tensor(ProcessGroup&, const Tensors&, const at::Tensor& labels,
                                        const libtorch::FeatureLossOptions&)>;
  const std::vector<Loss> losses{
      [](auto& group, const Tensors& x, const auto&, const auto& options) {
        return libtorch::clip_loss(group, x[0], x[1], x[2], options);
      },
      [](auto& group, const Tensors& x, const auto&, const auto& options) {
        return libtorch::siglip_loss(group, x[0], x[1], x[2], x[3], options);
      },
      [](auto& group, const Tensors& x, const auto& labels, const auto& options) {
        return libtorch::sup_con_loss(group, x[0], labels, x[2], options);
      }};
  const libtorch::FeatureLossOptions options{
      .label_smoothing = 0.1, .tile_rows = 3, .tile_columns = 4};
  for (const Loss& loss : losses) {
    const auto on_rank = [&](ProcessGroup& group, c10::Device device) {
      const std::int64_t rows = 2 * group.rank() + 1;
      Tensors x{pattern({rows, 5}, group.rank()), pattern({rows, 5}, group.rank() + 7),
                at::full({}, 2.0, at::kDouble), at::full({}, -1.0, at::kDouble)};
      for (at::Tensor& each : x) each = leaf(each.to(device));
      const at::Tensor labels = at::arange(rows, at::kLong).remainder(2).to(device);
      Tensors results{loss(group, x, labels, options)};
      results[0].backward();
      for (const at::Tensor& each : x)
        if (each.grad().defined()) results.push_back(each.grad());
      for (at::Tensor& each : results) {
        EXPECT_EQ(each.device(), device);
        each = each.cpu();
      }
      return results;
    };
    std::vector<Tensors> expected(static_cast<std::size_t>(size));
    on_ranks({"local", size, false}, [&](ProcessGroup& group) {
      expected[static_cast<std::size_t>(group.rank())] = on_rank(group, c10::kCPU);
    });
    on_cuda_ranks(GetParam(), [&](ProcessGroup& group, c10::Device device) {
      const Tensors actual = on_rank(group, device);
      const Tensors& want = expected[static_cast<std::size_t>(group.rank())];
      ASSERT_EQ(actual.size(), want.size());
      for (std::size_t i = 0; i < actual.size(); ++i)
        torch_network::expect_near(actual[i], want[i], 1e-12);
    });
  }
}

/// A hook with a state of its own on each rank, and how far its gradients on a device may be from
/// those on the host.
struct Hooked {
  std::string name;
  std::function<ddp::CommHook()> make;
  ddp::HookWrapper wrapper;
  double tolerance;
};
std::vector<Hooked> hooks() {
  const auto power = [](bool batched, int rank, bool reloads = false) {
    return [=]() -> ddp::CommHook {
      const auto state = std::make_shared<ddp::PowerSgdState>(
          ddp::PowerSgdOptions{.rank = rank, .start_step = 1, .min_compression_rate = 1});
      return [=](ddp::Bucket& bucket) {
        if (reloads && bucket.index() == 0) state->load(state->save());
        return batched ? ddp::batched_power_sgd_hook(*state, bucket)
                       : ddp::power_sgd_hook(*state, bucket);
      };
    };
  };
  return {
      {"all_reduce", [] { return ddp::all_reduce_hook; }, {}, 1e-12},
      {"fp16", ddp::fp16_compress_hook, {}, 4e-3},  // Gradients below 4, with 11 bits each.
      {"bf16", ddp::bf16_compress_hook, {}, 3e-2},  // With 8 bits.
      {"PowerSGD", power(false, 1), {}, 1e-10},
      {"PowerSGD of rank 2, loaded at each step", power(false, 2, true), {}, 1e-10},
      {"batched PowerSGD", power(true, 2), {}, 1e-10},
      {"PowerSGD in f16", power(false, 1), ddp::fp16_compress_wrapper, 4e-3},
  };
}

/// Makes four steps and returns the gradients of all.
Tensors hooked_gradients(ProcessGroup& group, c10::Device device, const Hooked& hook) {
  Network network(1);
  network.to(device);
  DistributedDataParallel model(group, network);
  libtorch::register_ddp_comm_hook(model, hook.make(), hook.wrapper);
  Tensors all;
  for (int step = 0; step < 4; ++step) {
    network.zero_grad();
    (loss_of(model, part(batch(step), group).to(device)) * group.size()).backward();
    for (const at::Tensor& p : network.parameters()) all.push_back(p.grad().cpu());
  }
  return all;
}

TEST_P(TorchDevice, HooksComputeAsOnTheHost) {
  const int size = GetParam().size;
  for (const Hooked& hook : hooks()) {
    SCOPED_TRACE(hook.name);
    std::vector<Tensors> expected(static_cast<std::size_t>(size));
    on_ranks({"local", size, false}, [&](ProcessGroup& group) {
      expected[static_cast<std::size_t>(group.rank())] = hooked_gradients(group, c10::kCPU, hook);
    });
    on_cuda_ranks(GetParam(), [&](ProcessGroup& group, c10::Device device) {
      const Tensors actual = hooked_gradients(group, device, hook);
      for (std::size_t i = 0; i < actual.size(); ++i)
        torch_network::expect_near(actual[i], expected[static_cast<std::size_t>(group.rank())][i],
                                   hook.tolerance);
    });
  }
}

}  // namespace
}  // namespace tutti::test
