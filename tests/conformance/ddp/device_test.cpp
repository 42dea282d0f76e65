#include <algorithm>
#include <functional>

#include <tutti/ddp/hooks.hpp>

#include "conformance/ddp/network.hpp"
#include "support/fake_ranks.hpp"
#include "support/sanitizers.hpp"

// Gradients on a fake device, computed by slow kernels on streams.

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::ReducerOptions;

constexpr auto slow = 100ms;
constexpr std::int64_t gradient_elements = 100;

/// A rank that makes gradients.
struct Gradients : FakeRank {
  TensorView make() const {
    return {device.allocate(gradient_elements * sizeof(float), {}),
            DType::f32,
            {gradient_elements},
            device.device()};
  }
  float mean() const { return static_cast<float>(group.size() + 1) / 2; }
};

void on_fake_ranks(const World& world, FakeFlaws flaws,
                   const std::function<void(const Gradients&)>& body) {
  run_fake_ranks(world, flaws, [&](const FakeRank& rank) { body({rank}); });
}

bool holds(const Gradients& at, const TensorView& data, float want, FakeStream& stream) {
  std::vector<float> host(gradient_elements);
  at.device.copy(host.data(), data.data, data.bytes(), stream.handle());
  return std::ranges::all_of(host, [&](float value) { return value == want; });
}

std::vector<ddp::Parameter> two(const Gradients& at) {
  const TensorView shape(nullptr, DType::f32, {gradient_elements}, at.device.device());
  return {{"a", shape}, {"b", shape}};
}

/// Makes two steps with both gradients in one bucket, from one stream or two.
bool waits_for_producers(const Gradients& at, ReducerOptions options, FakeStream& second,
                         bool views) {
  GradientReducer reducer(at.group, two(at), options);
  bool right = true;
  for (int step = 0; step < 2; ++step) {
    const TensorView a = views ? reducer.gradient(0) : at.make();
    const TensorView b = views ? reducer.gradient(1) : at.make();
    const auto value = static_cast<float>(at.group.rank() + 1);
    at.device.fill(a, value, slow, at.compute.handle());
    at.device.fill(b, 2 * value, slow, second.handle());
    reducer.mark_ready(0, a, at.compute.handle());
    reducer.mark_ready(1, b, second.handle());
    reducer.finish();
    right = holds(at, views ? reducer.gradient(0) : a, at.mean(), at.compute) && right;
    right = holds(at, views ? reducer.gradient(1) : b, 2 * at.mean(), second) && right;
  }
  return right;
}

class ReducerOnDevice : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerOnDevice, testing::ValuesIn(worlds({1, 2})), CaseName());

TEST_P(ReducerOnDevice, BucketsWaitForTheProducer) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    for (const bool check : {true, false})
      for (const bool views : {true, false})
        EXPECT_TRUE(waits_for_producers(at, {.check_steps = check}, at.compute, views))
            << (check ? "with" : "without") << " check, " << (views ? "views" : "copies");
  });
}

TEST_P(ReducerOnDevice, BucketsWaitForTwoProducers) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    EXPECT_TRUE(waits_for_producers(at, {}, at.other, true));
    EXPECT_TRUE(waits_for_producers(at, {.check_steps = false}, at.other, false));
  });
}

// With one rank the reduction changes nothing, so the test could not see when the reduction runs.
class ReducerOnDevices : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerOnDevices, testing::ValuesIn(worlds({2})), CaseName());

TEST_P(ReducerOnDevices, ABackendThatDoesNotWaitIsNoticed) {
  if (thread_sanitizer) GTEST_SKIP() << "the control is a data race on purpose";
  bool noticed = false;
  for (int attempt = 0; attempt < 5 && !noticed; ++attempt) {
    PerRank<char> held(GetParam().size);
    on_fake_ranks(GetParam(), {.ignores_call_stream = true}, [&](const Gradients& at) {
      held[at.group.rank()] = waits_for_producers(at, {}, at.compute, true);
    });
    noticed = std::ranges::any_of(held.all(), [](char h) { return h == 0; });
  }
  EXPECT_TRUE(noticed) << "the check does not notice a backend that breaks the rule";
}

TEST_P(ReducerOnDevice, ParametersAndUnusedGradientsAreOnTheDevice) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    const TensorView value = at.make();
    at.device.fill(value, static_cast<float>(at.group.rank() + 3), {}, {});
    GradientReducer reducer(at.group, {{"a", value}}, {.find_unused_parameters = true});
    EXPECT_TRUE(holds(at, value, 3, at.compute));
    for (int step = 0; step < 2; ++step) {
      const TensorView gradient = at.make();
      at.device.fill(gradient, 4, slow, at.compute.handle());
      if (at.group.rank() == 0) reducer.mark_ready(0, gradient, at.compute.handle());
      reducer.finish();
      EXPECT_TRUE(
          holds(at, reducer.gradient(0), 4.0F / static_cast<float>(at.group.size()), at.compute));
    }
  });
}

TEST_P(ReducerOnDevice, AnArrayOfTheHookIsCopiedInTheOrderOfTheStreams) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    for (const bool check : {true, false}) {
      GradientReducer reducer(at.group, two(at), {.check_steps = check});
      std::weak_ptr<Tensor> array;
      reducer.set_hook([&](ddp::Bucket& bucket) {
        const auto other =
            std::make_shared<Tensor>(at.group.memory(), bucket.buffer().shape, DType::f32);
        array = other;
        Work work = at.group.all_reduce_async(bucket.buffer(), *other, bucket.op(), bucket.call());
        bucket.set_buffer(*other, other);
        return work;
      });
      for (int step = 0; step < 2; ++step) {
        const TensorView a = at.make();
        const TensorView b = at.make();
        at.device.fill(a, static_cast<float>(at.group.rank() + 1), slow, at.compute.handle());
        at.device.fill(b, static_cast<float>(at.group.rank() + 1), slow, at.other.handle());
        reducer.mark_ready(0, a, at.compute.handle());
        reducer.mark_ready(1, b, at.other.handle());
        reducer.finish();
        EXPECT_TRUE(array.expired());
        EXPECT_TRUE(holds(at, a, at.mean(), at.compute));
        EXPECT_TRUE(holds(at, b, at.mean(), at.other));
        EXPECT_TRUE(holds(at, reducer.gradient(0), at.mean(), at.compute));
      }
    }
  });
}

TEST_P(ReducerOnDevice, RowsAreRefusedByName) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    expect_error(Errc::unsupported,
                 {"average_over_rows takes gradients in host memory", "extension:"},
                 [&] { GradientReducer(at.group, two(at), {.average_over_rows = true}); });
  });
}

TEST_P(ReducerOnDevice, CompressionIsRefusedByName) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    GradientReducer reducer(at.group, two(at));
    reducer.set_hook(ddp::fp16_compress_hook());
    const TensorView gradient = at.make();
    reducer.mark_ready(0, gradient);
    expect_error({Errc::unsupported, Errc::aborted},
                 {"the compression to f16 takes floats in host memory"},
                 [&] { reducer.mark_ready(1, gradient); });
  });
}

}  // namespace
}  // namespace tutti::test
