#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include <tutti/ddp/device_arithmetic.hpp>
#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/power_sgd.hpp>
#include <tutti/half.hpp>

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

TEST_P(ReducerOnDevice, TheDivisorMayChangeWithEachStep) {
  on_fake_ranks(GetParam(), {}, [](const Gradients& at) {
    GradientReducer reducer(at.group, two(at));
    for (const double divisor : {0.0, 1.0, 4.0, 4.0, 0.0}) {
      reducer.set_divisor(divisor);
      const TensorView a = at.make();
      const TensorView b = at.make();
      const auto value = static_cast<float>(at.group.rank() + 1);
      at.device.fill(a, value, {}, at.compute.handle());
      at.device.fill(b, value, {}, at.compute.handle());
      reducer.mark_ready(0, a, at.compute.handle());
      reducer.mark_ready(1, b, at.compute.handle());
      reducer.finish();
      const auto size = static_cast<float>(at.group.size());
      const float want = at.mean() * size / (divisor == 0 ? size : static_cast<float>(divisor));
      EXPECT_TRUE(holds(at, a, want, at.compute)) << "divisor " << divisor;
    }
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

/// Kernels that loop over elements.
class FakeArithmetic final : public ddp::DeviceArithmetic {
 public:
  explicit FakeArithmetic(FakeDevice& device) : device_(device) {}

  void scale(const ConstTensorView& from, double factor, const TensorView& to, bool add,
             Stream stream) override {
    device_.stream(stream).push([=] {
      for (std::int64_t i = 0; i < to.shape.numel(); ++i)
        set(to, i, (add ? get(to, i) : 0) + get(from, i) * factor);
    });
  }
  void multiply(const ConstTensorView& a, bool transpose_a, const ConstTensorView& b,
                bool transpose_b, const TensorView& out, Stream stream) override {
    device_.stream(stream).push([=] {
      const auto at = [](const ConstTensorView& x, bool turned, std::int64_t i, std::int64_t j) {
        return get(x, turned ? j * x.shape.dims()[1] + i : i * x.shape.dims()[1] + j);
      };
      const std::int64_t columns = out.shape.dims()[1];
      for (std::int64_t i = 0; i < out.shape.numel(); ++i) {
        double sum = 0;
        for (std::int64_t k = 0; k < a.shape.dims()[transpose_a ? 0 : 1]; ++k)
          sum += at(a, transpose_a, i / columns, k) * at(b, transpose_b, k, i % columns);
        set(out, i, sum);
      }
    });
  }
  /// Of one row, which is not 0.
  void orthonormalize(const TensorView& rows, double, const ConstTensorView&,
                      Stream stream) override {
    ASSERT_EQ(rows.shape.dims()[0], 1);
    device_.stream(stream).push([=] {
      double square = 0;
      for (std::int64_t i = 0; i < rows.shape.numel(); ++i) square += get(rows, i) * get(rows, i);
      for (std::int64_t i = 0; i < rows.shape.numel(); ++i)
        set(rows, i, get(rows, i) / std::sqrt(square));
    });
  }
  void subtract(const TensorView& m, const ConstTensorView& product, Stream stream) override {
    scale(product, -1, m, true, stream);
  }

 private:
  static double get(const ConstTensorView& x, std::int64_t i) {
    if (x.dtype == DType::f16) return static_cast<float>(static_cast<const Float16*>(x.data)[i]);
    return static_cast<const float*>(x.data)[i];
  }
  static void set(const TensorView& x, std::int64_t i, double value) {
    const auto rounded = static_cast<float>(value);
    if (x.dtype == DType::f16)
      static_cast<Float16*>(x.data)[i] = Float16(rounded);
    else
      static_cast<float*>(x.data)[i] = rounded;
  }
  FakeDevice& device_;
};

// The gradients are equal in all elements: matrices of rank 1, which PowerSGD sends without an
// error.
TEST_P(ReducerOnDevice, HooksComputeByTheFrameworksArithmetic) {
  const auto power = [] {
    return ddp::power_sgd_hook(std::make_shared<ddp::PowerSgdState>(
        ddp::PowerSgdOptions{.rank = 1, .start_step = 0, .min_compression_rate = 1}));
  };
  const std::vector<std::function<ddp::CommHook()>> hooks{
      ddp::fp16_compress_hook, power, [&] { return ddp::fp16_compress_wrapper(power()); }};
  for (std::size_t hook = 0; hook < hooks.size(); ++hook)
    on_fake_ranks(GetParam(), {}, [&](const Gradients& at) {
      const TensorView shape(nullptr, DType::f32, {10, 10}, at.device.device());
      GradientReducer reducer(at.group, {{"a", shape}},
                              {.arithmetic = std::make_shared<FakeArithmetic>(at.device)});
      reducer.set_hook(hooks[hook]());
      for (int step = 0; step < 3; ++step) {
        TensorView gradient = at.make();
        gradient.shape = shape.shape;
        at.device.fill(gradient, static_cast<float>(at.group.rank() + 1 + step), slow,
                       at.compute.handle());
        reducer.mark_ready(0, gradient, at.compute.handle());
        reducer.finish();
        std::vector<float> host(gradient_elements);
        at.device.copy(host.data(), gradient.data, gradient.bytes(), at.compute.handle());
        for (const float value : host)
          EXPECT_NEAR(value, at.mean() + static_cast<float>(step), 4e-3) << "hook " << hook;
      }
    });
}

}  // namespace
}  // namespace tutti::test
