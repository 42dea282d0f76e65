#include <tutti/ddp/hooks.hpp>

#include <tutti/ddp/local_sgd.hpp>
#include <tutti/ddp/power_sgd.hpp>

#include "conformance/ddp/hook_steps.hpp"
#include "conformance/ddp/network.hpp"
#include "conformance/observed.hpp"

#include "../../../docs/examples/17_comm_hooks/gossip.hpp"

// Tests what register_ddp_comm_hook promises, and the hooks that compress.

namespace tutti::test {
namespace {

using ddp::Bucket;
using ddp::CommHook;
using ddp::GradientReducer;

class CommHooks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CommHooks, testing::ValuesIn(worlds()), CaseName());
/// Hooks whose then() owns arrays of the messages: without it they are used after their end.
class HookArrays : public CommHooks {};
INSTANTIATE_TEST_SUITE_P(Worlds, HookArrays, testing::ValuesIn(worlds()), CaseName());

constexpr std::int64_t numel = 1000;

/// Returns fractions that are not exact in 16 bits and differ between ranks.
template <typename T>
std::vector<T> gradient_of(int rank) {
  std::vector<T> values(numel);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(std::sin(0.37 * static_cast<double>(i) + rank) * (1 + rank) / 3);
  return values;
}

std::vector<ddp::Parameter> one(ProcessGroup& group, DType dtype) {
  return {{"w", {nullptr, dtype, {numel}, group.memory().device()}}};
}

/// Runs one step with the hook.
template <typename T>
std::vector<T> reduced(ProcessGroup& group, CommHook hook, const ddp::HookWrapper& wrapper = {}) {
  GradientReducer reducer(group, one(group, dtype_of<T>));
  reducer.set_hook(std::move(hook), wrapper);
  const Buffer gradient(group, array_of<T>(gradient_of<T>(group.rank())));
  reducer.mark_ready(0, gradient);
  reducer.finish();
  return values_of<T>(gradient.read());
}

/// Returns the mean, computed in double.
std::vector<double> mean(int size) {
  std::vector<double> sum(numel);
  for (int rank = 0; rank < size; ++rank) {
    const auto values = gradient_of<double>(rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i] / size;
  }
  return sum;
}

template <typename T>
void expect_values(const std::vector<T>& got, const std::vector<double>& want, double tolerance) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(got[i]) - want[i]));
  EXPECT_LE(most, tolerance) << "the gradient differs";
}

TEST_P(CommHooks, AllReduceIsTheMean) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    expect_values(reduced<double>(group, ddp::all_reduce_hook), mean(group.size()), 1e-14);
    expect_values(reduced<float>(group, ddp::all_reduce_hook), mean(group.size()), 1e-6);
  });
}

TEST_P(CommHooks, TheHookSeesUndividedGradientsAndOwnsTheDivision) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto mine = gradient_of<double>(group.rank());
    const auto sums = reduced<double>(group, [&](Bucket& bucket) {
      EXPECT_EQ(values_of<double>(content_of(bucket.group(), bucket.gradient(0))), mine);
      EXPECT_EQ(bucket.divisor(), group.size());
      return bucket.group().all_reduce_async(bucket.buffer(), ReduceOp::sum, bucket.call());
    });
    auto want = mean(group.size());
    for (double& v : want) v *= group.size();
    expect_values(sums, want, 1e-13);
  });
}

TEST_P(CommHooks, AFinishedWorkIsAResult) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    EXPECT_EQ(reduced<double>(group, ddp::noop_hook), gradient_of<double>(group.rank()));
    const auto ones = reduced<double>(group, [](Bucket& bucket) {
      auto* data = static_cast<double*>(bucket.buffer().data);
      std::fill_n(data, bucket.buffer().shape.numel(), 1.0);
      return Work();
    });
    EXPECT_EQ(ones, std::vector<double>(numel, 1.0));
  });
}

TEST_P(CommHooks, WhatFollowsTheReductionRunsBeforeFinishReturns) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto halves = reduced<double>(group, [](Bucket& bucket) {
      return ddp::all_reduce_hook(bucket).then([&bucket] {
        const TensorView gradient = bucket.gradient(0);
        auto* data = static_cast<double*>(gradient.data);
        for (std::int64_t i = 0; i < gradient.shape.numel(); ++i) data[i] /= 2;
      });
    });
    auto want = mean(group.size());
    for (double& v : want) v /= 2;
    expect_values(halves, want, 1e-14);
  });
}

TEST_P(HookArrays, AnArrayOfTheHookIsTheResult) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const bool late : {false, true}) {
      const CommHook hook = hook_with_an_array(late);
      EXPECT_EQ(reduced<double>(group, hook), reduced<double>(group, ddp::all_reduce_hook));
      EXPECT_EQ(reduced<float>(group, hook, ddp::bf16_compress_wrapper),
                reduced<float>(group, ddp::bf16_compress_hook()));
    }
  });
}

TEST_P(HookArrays, AnArrayOfTheHookIsCopiedToTheBucketAndReleased) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const bool views : {false, true}) {
      GradientReducer reducer(group, one(group, DType::f64), {.gradient_as_bucket_view = views});
      std::weak_ptr<Tensor> array;
      reducer.set_hook(hook_with_an_array(true, &array));
      for (int step = 0; step < 3; ++step) {
        auto want = mean(group.size());
        const Buffer gradient(group, array_of<double>(gradient_of<double>(group.rank())));
        const TensorView place = views ? reducer.gradient(0) : gradient.view();
        if (step == 1) {  // Rank 0 has no batch.
          const auto first = gradient_of<double>(0);
          for (std::size_t i = 0; i < want.size(); ++i) want[i] -= first[i] / group.size();
        }
        if (step == 1 && group.rank() == 0) {
          reducer.step_empty();
        } else {
          if (views) group.memory().copy(place.data, gradient.view().data, place.bytes(), {});
          reducer.mark_ready(0, place);
          reducer.finish();
          expect_values(values_of<double>(content_of(group, place)), want, 1e-14);
        }
        expect_values(values_of<double>(content_of(group, reducer.gradient(0))), want, 1e-14);
        EXPECT_TRUE(array.expired()) << "the reducer keeps the array";
      }
    }
  });
}

TEST_P(HookArrays, GossipAveragesWithRotatingPartnersAndKeepsTheMean) {
  constexpr double rate = 0.25;
  constexpr std::size_t count = 40;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int size = group.size();
    std::vector<float> values(count);
    std::vector<float> gradients(count);
    GradientReducer reducer(group, {{"w", values}});
    reducer.set_hook(Gossip(rate));
    std::vector<std::vector<double>> all(index(size), std::vector<double>(count));  // By rank.
    std::vector<double> mean(count);
    for (int step = 0; step < 5; ++step) {
      const int d = size == 1 ? 0 : size == 2 || step % 2 == 0 ? 1 : 2;
      auto updated = all;
      for (int rank = 0; rank < size; ++rank)
        for (std::size_t i = 0; i < count; ++i) {
          const double change = rate * gradient_value(0, rank, step, static_cast<std::int64_t>(i));
          updated[index(rank)][i] -= change;
          mean[i] -= change / size;
        }
      for (int rank = 0; rank < size; ++rank)
        for (std::size_t i = 0; i < count; ++i)
          all[index(rank)][i] =
              (updated[index(rank)][i] + updated[index((rank - d + size) % size)][i]) / 2;

      for (std::size_t i = 0; i < count; ++i)
        gradients[i] =
            static_cast<float>(gradient_value(0, group.rank(), step, static_cast<std::int64_t>(i)));
      reducer.mark_ready(0, gradients);
      reducer.finish();
      for (std::size_t i = 0; i < count; ++i) values[i] -= static_cast<float>(rate) * gradients[i];
      expect_values(values, all[index(group.rank())], 1e-6);
      auto means = values;
      group.all_reduce(means, ReduceOp::avg);
      expect_values(means, mean, 1e-6);
    }
  });
}

TEST_P(CommHooks, AWrongArrayOfTheHookAbortsTheGroup) {
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    expect_error({Errc::invalid_argument, Errc::aborted, Errc::peer_lost},
                 {"Bucket::set_buffer: the array for bucket 0 is f64 [1000] on ",
                  "; it must be f32 [1008] on "},
                 [&] {
                   (void)reduced<float>(group, [&](Bucket& bucket) {
                     Tensor wrong(group.memory(), {numel}, DType::f64);
                     if (group.rank() == group.size() - 1) bucket.set_buffer(wrong);
                     return ddp::all_reduce_hook(bucket);
                   });
                 });
  });
}

TEST_P(CommHooks, TheHookSeesTheParameters) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const Buffer values(group, array_of<float>({1, 2, 3}));
    const Buffer gradients(group, array_of<float>({4, 5, 6}));
    const TensorView unknown(nullptr, DType::f32, {2}, group.memory().device());
    GradientReducer reducer(group, {{"known", values}, {"unknown", unknown}});
    int seen = 0;
    reducer.set_hook([&](Bucket& bucket) {
      for (std::size_t i = 0; i < bucket.slices().size(); ++i, ++seen) {
        const bool known = bucket.slices()[i].id == 0;
        EXPECT_EQ(bucket.parameter(i).data, known ? values.view().data : nullptr);
        EXPECT_EQ(bucket.parameter(i).shape, bucket.gradient(i).shape);
      }
      return ddp::all_reduce_hook(bucket);
    });
    for (int step = 0; step < 2; ++step) {
      reducer.mark_ready(0, gradients);
      reducer.mark_unused(1);
      reducer.finish();
    }
    EXPECT_EQ(seen, 4);
  });
}

TEST_P(CommHooks, CompressionIsTheMeanWithinItsRounding) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    // Values are at most 4/3. Each of the 3 roundings is at most half a unit in the last place:
    // 2^-11 in f16, 2^-8 in bf16.
    const double largest = 4.0 / 3;
    for (const auto& hook :
         {ddp::fp16_compress_hook(), ddp::fp16_compress_wrapper(ddp::all_reduce_hook)})
      expect_values(reduced<float>(group, hook), mean(group.size()),
                    largest * (group.size() + 2) * std::ldexp(1, -11));
    expect_values(reduced<double>(group, ddp::bf16_compress_hook()), mean(group.size()),
                  largest * (group.size() + 2) * std::ldexp(1, -8));
    const auto exact = reduced<float>(group, ddp::all_reduce_hook);
    EXPECT_NE(reduced<float>(group, ddp::fp16_compress_hook()), exact) << "nothing was compressed";
    EXPECT_NE(reduced<float>(group, ddp::bf16_compress_hook()), exact) << "nothing was compressed";
  });
}

TEST_P(CommHooks, TheCompressionHookIsTheWrapperAroundAllReduce) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    EXPECT_EQ(reduced<float>(group, ddp::fp16_compress_hook()),
              reduced<float>(group, ddp::all_reduce_hook, ddp::fp16_compress_wrapper));
    EXPECT_EQ(reduced<float>(group, ddp::bf16_compress_hook()),
              reduced<float>(group, ddp::all_reduce_hook, ddp::bf16_compress_wrapper));
  });
}

// The table of docs/examples/17_comm_hooks, in bytes of the collectives' arrays.
TEST_P(CommHooks, EachHookSendsItsBytesAloneAndInACompression) {
  struct Row {
    const char* name;
    std::function<CommHook()> make;
    std::int64_t elements, bytes;  // In one step; bytes per element without a wrapper.
  };
  const auto power = [](auto hook) {
    return [hook] {
      return hook(
          std::make_shared<ddp::PowerSgdState>(ddp::PowerSgdOptions{.rank = 4, .start_step = 0}));
    };
  };
  using State = std::shared_ptr<ddp::PowerSgdState>;
  // A matrix [64, 32] and a vector [32] in a bucket of 2080 elements, as a square [46, 46].
  const Row rows[] = {
      {"all_reduce", [] { return ddp::all_reduce_hook; }, 2080, 4},
      {"fp16", ddp::fp16_compress_hook, 2080, 2},
      {"bf16", ddp::bf16_compress_hook, 2080, 2},
      {"PowerSGD", power([](State s) { return ddp::power_sgd_hook(s); }), 96 * 4 + 32, 4},
      {"batched PowerSGD", power([](State s) { return ddp::batched_power_sgd_hook(s); }), 92 * 4,
       4},
      {"local SGD, first steps",
       [] { return ddp::post_local_sgd_hook(std::make_shared<ddp::PostLocalSgdState>(9)); }, 2080,
       4},
      {"local SGD alone",
       [] { return ddp::post_local_sgd_hook(std::make_shared<ddp::PostLocalSgdState>(0)); }, 0, 4},
      {"noop", [] { return ddp::noop_hook; }, 0, 4},
  };
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto sent = [&](const CommHook& hook) {
      HookSteps steps(group, DType::f32, {{64, 32}, {32}}, {{0, 1}});
      group.barrier();
      const auto before = group.trace().back().seq;
      steps.run(hook);
      std::int64_t bytes = 0;
      for (const TraceEntry& call : group.trace())
        if (call.seq > before) bytes += call.bytes;
      return bytes;
    };
    for (const Row& row : rows) {
      SCOPED_TRACE(row.name);
      EXPECT_EQ(sent(row.make()), row.elements * row.bytes);
      EXPECT_EQ(sent(ddp::fp16_compress_wrapper(row.make())), row.elements * 2);
      EXPECT_EQ(sent(ddp::bf16_compress_wrapper(row.make())), row.elements * 2);
    }
  });
}

TEST_P(CommHooks, TheInnerHookOfACompressionSeesTheCastBucket) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    int calls = 0;
    const auto values = reduced<float>(
        group,
        [&](Bucket& bucket) {
          ++calls;
          EXPECT_EQ(bucket.buffer().dtype, DType::f16);
          EXPECT_EQ(bucket.gradient(0).shape, (Shape{numel}));
          return Work();
        },
        ddp::fp16_compress_wrapper);
    EXPECT_EQ(calls, 1);
    const auto mine = gradient_of<float>(group.rank());
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(values[i], static_cast<float>(Float16(mine[i])));
  });
}

TEST_P(CommHooks, SmallFloatsAreDividedBeforeTheSum) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    // The sum of two is infinite in f16.
    const Buffer values(group, array_of<Float16>(std::vector<Float16>(8, Float16(60000.0F))));
    GradientReducer reducer(group, {{"w", {nullptr, DType::f16, {8}, group.memory().device()}}});
    reducer.mark_ready(0, values);
    reducer.finish();
    for (const Float16 v : values_of<Float16>(values.read()))
      EXPECT_NEAR(static_cast<float>(v), 60000, 64);
  });
}

TEST_P(CommHooks, RankZeroLogsTheWrapper) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    int lines = 0;
    GradientReducer reducer(group, one(group, DType::f32),
                            {.logger = [&](LogLevel level, std::string_view message) {
                              EXPECT_EQ(level, LogLevel::info);
                              EXPECT_NE(message.find("wrapper"), std::string_view::npos);
                              ++lines;
                            }});
    reducer.set_hook(ddp::all_reduce_hook);
    EXPECT_EQ(lines, 0);
    reducer.set_hook(ddp::all_reduce_hook, ddp::bf16_compress_wrapper);
    EXPECT_EQ(lines, group.rank() == 0 ? 1 : 0);
  });
}

TEST_P(CommHooks, HooksAreSetBetweenSteps) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const Buffer values(group, array_of<float>({1, 1, 1, 1}));
    const Buffer others(group, array_of<float>({1, 1, 1, 1}));
    GradientReducer reducer(group, {{"a", values}, {"b", others}});
    reducer.mark_ready(0, values);
    expect_error(Errc::invalid_argument, {"set_hook was called during step 0"},
                 [&] { reducer.set_hook(ddp::noop_hook); });
    expect_error(Errc::invalid_argument, {"no_sync was called during step 0"},
                 [&] { (void)reducer.no_sync(); });
    reducer.mark_ready(1, others);
    reducer.finish();
    expect_error(Errc::invalid_argument, {"the wrapper returned a null hook"}, [&] {
      reducer.set_hook(ddp::noop_hook, [](const CommHook&) { return CommHook(); });
    });
    expect_error(Errc::invalid_argument, {"compresses to f16 is null"},
                 [&] { (void)ddp::fp16_compress_wrapper(nullptr); });
    expect_error(Errc::invalid_argument, {"divisor is -1"}, [&] { reducer.set_divisor(-1); });
  });
}

}  // namespace
}  // namespace tutti::test
