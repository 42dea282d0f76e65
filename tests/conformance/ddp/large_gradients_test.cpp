#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <optional>

#include "conformance/cells.hpp"
#include "conformance/ddp/hook_steps.hpp"
#include "conformance/observed.hpp"

// Gradients of 1 MiB and more. In host memory they are reduced in the arrays that were marked.

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::Parameter;
using ddp::ReducerOptions;

class LargeGradients : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LargeGradients, testing::ValuesIn(worlds()), CaseName());

class LargeGradientsOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LargeGradientsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr std::int64_t limit = (1 << 20) / sizeof(float);

/// Large and small gradients in turn: one is just large, one just small, and one has elements
/// beyond a multiple of a cache line.
const std::vector<Shape> gradient_shapes{{limit}, {9}, {3, limit / 3 + 7}, {limit - 1}, {64, 5}};

std::vector<Parameter> large_parameters(ProcessGroup& group) {
  std::vector<Parameter> list;
  for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
    list.push_back({"p" + std::to_string(id),
                    {nullptr, DType::f32, gradient_shapes[id], group.memory().device()}});
  return list;
}

constexpr std::int64_t period = 1000;

/// Element i of gradient `id` on a rank: a whole number, so that sums are exact. Element i + period
/// is the same, which quickly fills and compares arrays.
float element(std::size_t id, std::int64_t i, int rank) {
  return static_cast<float>((i + static_cast<std::int64_t>(id)) % period + 4 * rank);
}

Array large_gradient(std::size_t id, int rank) {
  Array content(DType::f32, gradient_shapes[id]);
  for (std::int64_t i = 0; i < std::min(period, content.numel()); ++i)
    content.put<float>(i, element(id, i, rank));
  const auto bytes = content.bytes();
  for (std::size_t done = period * sizeof(float); done < bytes.size(); done *= 2)
    std::memcpy(bytes.data() + done, bytes.data(), std::min(done, bytes.size() - done));
  return content;
}

bool reduces_in_place(ProcessGroup& group, std::size_t id) {
  return group.memory().device().type == DeviceType::cpu && gradient_shapes[id].numel() >= limit;
}

/// The gradients of a rank. On the host odd ranks have them in memory of their own, the others in
/// memory of the group.
class Gradients {
 public:
  explicit Gradients(ProcessGroup& group) : group_(group) {
    for (std::size_t id = 0; id < gradient_shapes.size(); ++id) {
      own_.push_back(large_gradient(id, group.rank()));
      of_group_.emplace_back(group, own_.back());
    }
  }
  TensorView array(std::size_t id) {
    const bool own = group_.memory().device().type == DeviceType::cpu && group_.rank() % 2 == 1;
    return own ? TensorView(own_[id].bytes().data(), DType::f32, gradient_shapes[id])
               : of_group_[id].view();
  }
  void mark(GradientReducer& reducer) {
    for (std::size_t id = gradient_shapes.size(); id-- > 0;) reducer.mark_ready(id, array(id));
  }

 private:
  ProcessGroup& group_;
  std::vector<Array> own_;
  std::vector<Buffer> of_group_;
};

/// Expects the mean over the ranks, of which those that `has` names have a gradient.
void expect_mean(
    ProcessGroup& group, std::size_t id, const ConstTensorView& array,
    const std::function<bool(int)>& has = [](int) { return true; }) {
  const Array got = content_of(group, array);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < std::min(period, got.numel()); ++i) {
    double sum = 0;
    for (int rank = 0; rank < group.size(); ++rank)
      if (has(rank)) sum += element(id, i, rank);
    wrong += std::abs(got.get<float>(i) - sum / group.size()) > 1e-3;  // Only the division rounds.
  }
  constexpr std::size_t repeats = period * sizeof(float);
  const auto bytes = got.bytes();
  if (bytes.size() > repeats)
    wrong += std::memcmp(bytes.data(), bytes.data() + repeats, bytes.size() - repeats) != 0;
  EXPECT_EQ(wrong, 0) << "gradient " << id << " differs";
}

/// Makes a step, and expects the means in the arrays that were marked and from gradient().
void expect_step(ProcessGroup& group, GradientReducer& reducer, bool has_hook = false) {
  Gradients mine(group);
  mine.mark(reducer);
  reducer.finish();
  for (std::size_t id = 0; id < gradient_shapes.size(); ++id) {
    expect_mean(group, id, mine.array(id));
    expect_mean(group, id, reducer.gradient(id));
    EXPECT_EQ(reducer.gradient(id).data == mine.array(id).data,
              reduces_in_place(group, id) && !has_hook);
  }
}

TEST_P(LargeGradients, AreMeansInTheArraysThatWereMarked) {
  for (const std::int64_t cap : {std::int64_t{1} << 20, std::int64_t{25} << 20})
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      GradientReducer reducer(group, large_parameters(group), {.bucket_cap = cap});
      for (int step = 0; step < 3; ++step)  // The buckets change after the first.
        expect_step(group, reducer);
    });
}

TEST_P(LargeGradients, MayBeMarkedAtTheirPlacesOnSomeRanks) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, large_parameters(group), {.rebuild_buckets = false});
    Gradients mine(group);
    for (std::size_t id = 0; id < gradient_shapes.size(); ++id) {
      TensorView array = mine.array(id);
      if (group.rank() == 0) {
        const TensorView place = reducer.gradient(id);
        group.memory().copy(place.data, array.data, array.bytes(), {});
        array = place;
      }
      reducer.mark_ready(id, array);
    }
    reducer.finish();
    for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
      expect_mean(group, id, group.rank() == 0 ? reducer.gradient(id) : mine.array(id));
  });
}

TEST_P(LargeGradients, AreInTheBucketsOfAHook) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, large_parameters(group));
    for (const auto& hook : {ddp::CommHook(ddp::all_reduce_hook), hook_with_an_array(false)}) {
      reducer.set_hook(hook);
      expect_step(group, reducer, true);
    }
  });
}

TEST_P(LargeGradientsOfSeveral, MayLackOnSomeRanks) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, large_parameters(group), {.find_unused_parameters = true});
    const int last = group.size() - 1;
    for (int step = 0; step < 4; ++step) {
      const bool empty = step == 3;  // Then the last rank has no gradient at all.
      const auto has = [&](std::size_t id, int rank) {
        return rank != last || (!empty && (static_cast<int>(id) + step) % 2 == 0);
      };
      Gradients mine(group);
      if (empty && group.rank() == last) {
        reducer.step_empty();
      } else {
        for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
          if (has(id, group.rank())) reducer.mark_ready(id, mine.array(id));
        reducer.finish();
      }
      for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
        expect_mean(group, id, reducer.gradient(id), [&](int rank) { return has(id, rank); });
    }
  });
}

TEST_P(LargeGradients, OfEveryDtypeAreReducedInTheirArrays) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto reduces = [&]<typename T>(T mine, T mean) {
      const auto filled = [](T value) {
        Array array(dtype_of<T>, {2 * limit});
        for (std::int64_t i = 0; i < array.numel(); ++i) array.put<T>(i, value);
        return array;
      };
      const Buffer gradient(group, filled(mine));
      GradientReducer reducer(group, {{"p", gradient.view()}}, {.rebuild_buckets = false});
      gradient.write(filled(mine));
      reducer.mark_ready(0, gradient);
      reducer.finish();
      EXPECT_TRUE(same(gradient.read(), filled(mean))) << name_of(dtype_of<T>);
    };
    const float mine = 2 * static_cast<float>(group.rank() + 1);
    const auto mean = static_cast<float>(group.size() + 1);
    if (group.size() != 3) {  // A division by 3 rounds in 16 bits.
      reduces(Float16(mine), Float16(mean));
      reduces(BFloat16(mine), BFloat16(mean));
    }
    reduces(static_cast<double>(mine), static_cast<double>(mean));
    reduces(std::complex(mine, -mine), std::complex(mean, -mean));
  });
}

TEST_P(LargeGradients, TakePartInStepsOfEveryKind) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, large_parameters(group), {.check_steps = false});
    const auto no_rank = [](int) { return false; };
    expect_step(group, reducer);
    {
      const auto scope = reducer.no_sync();
      Gradients mine(group);
      mine.mark(reducer);
      reducer.finish();
      EXPECT_TRUE(same(content_of(group, mine.array(0)), large_gradient(0, group.rank())));
    }
    expect_step(group, reducer);
    Gradients mine(group);
    for (std::size_t id = 1; id < gradient_shapes.size(); ++id)
      reducer.mark_ready(id, mine.array(id));
    reducer.mark_unused(0);
    reducer.finish();
    expect_mean(group, 0, reducer.gradient(0), no_rank);
    expect_mean(group, 2, mine.array(2));
    expect_step(group, reducer);
    reducer.step_empty();
    for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
      expect_mean(group, id, reducer.gradient(id), no_rank);
    expect_step(group, reducer);
    reducer.set_hook(ddp::all_reduce_hook);
    expect_step(group, reducer, true);
  });
}

// A sanitizer detects a use of the arrays, which are freed while the group lives.
TEST_P(LargeGradientsOfSeveral, AreNotUsedAfterAStepThatFailed) {
  RankBarrier freed(GetParam().size);
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    std::optional<Gradients> mine(group);
    std::optional<GradientReducer> reducer;
    reducer.emplace(group, large_parameters(group));
    if (group.rank() == group.size() - 1) {
      reducer->mark_ready(0, mine->array(0));
      reducer.reset();
    } else {
      expect_error({Errc::aborted, Errc::peer_lost}, {"destroyed within step 0"}, [&] {
        mine->mark(*reducer);
        reducer->finish();
      });
    }
    mine.reset();
    freed.wait();
  });
}

// A call must not write an array that another call reads at the same time.
TEST_P(LargeGradientsOfSeveral, ThatOverlapAreRefusedOnEveryRank) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    if (group.memory().device().type != DeviceType::cpu) return;  // Copied in order there.
    GradientReducer reducer(group, large_parameters(group));
    const int last = group.size() - 1;
    for (const bool small_first : {true, false}) {
      Gradients mine(group);
      if (group.rank() == last) {
        const TensorView whole = mine.array(0);
        const TensorView end(static_cast<float*>(whole.data) + (limit - 9), DType::f32,
                             gradient_shapes[1]);
        const std::size_t first = small_first ? 1 : 0;
        reducer.mark_ready(first, small_first ? end : whole);
        expect_error(Errc::invalid_argument,
                     {"overlaps that of parameter " + std::to_string(first), "1048576 bytes"},
                     [&] { reducer.mark_ready(1 - first, small_first ? whole : end); });
      } else {
        expect_error(Errc::mismatch, {"rank " + std::to_string(last), "overlaps"}, [&] {
          mine.mark(reducer);
          reducer.finish();
        });
      }
    }
    // Neighbours do not overlap, and small gradients may.
    Gradients mine(group);
    Array joined(DType::f32, {limit + 9});
    std::memcpy(joined.bytes().data(), large_gradient(0, group.rank()).bytes().data(),
                limit * sizeof(float));
    TensorView small = mine.array(1);
    small.data = joined.bytes().data() + limit * sizeof(float);
    Array shared = large_gradient(3, group.rank());
    const TensorView third(shared.bytes().data(), DType::f32, gradient_shapes[3]);
    reducer.mark_ready(1, small);
    reducer.mark_ready(0, {joined.bytes().data(), DType::f32, gradient_shapes[0]});
    reducer.mark_ready(2, mine.array(2));
    reducer.mark_ready(3, third);
    reducer.mark_ready(4, {shared.bytes().data(), DType::f32, gradient_shapes[4]});
    reducer.finish();
    expect_mean(group, 0, reducer.gradient(0));
    expect_mean(group, 2, mine.array(2));
  });
}

}  // namespace
}  // namespace tutti::test
