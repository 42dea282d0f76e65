#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/cells.hpp"
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

Array gradient_of(std::size_t id, int rank) {
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
      own_.push_back(gradient_of(id, group.rank()));
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

TEST_P(LargeGradients, AreMeansInTheArraysThatWereMarked) {
  for (const std::int64_t cap : {std::int64_t{1} << 20, std::int64_t{25} << 20})
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      GradientReducer reducer(group, large_parameters(group), {.bucket_cap = cap});
      for (int step = 0; step < 3; ++step) {  // The buckets change after the first.
        Gradients mine(group);
        mine.mark(reducer);
        reducer.finish();
        for (std::size_t id = 0; id < gradient_shapes.size(); ++id) {
          expect_mean(group, id, mine.array(id));
          expect_mean(group, id, reducer.gradient(id));
          EXPECT_EQ(reducer.gradient(id).data == mine.array(id).data, reduces_in_place(group, id));
        }
      }
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
    reducer.set_hook(ddp::all_reduce_hook);
    Gradients mine(group);
    mine.mark(reducer);
    reducer.finish();
    for (std::size_t id = 0; id < gradient_shapes.size(); ++id) {
      expect_mean(group, id, mine.array(id));
      expect_mean(group, id, reducer.gradient(id));
      EXPECT_NE(reducer.gradient(id).data, mine.array(id).data);
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

// A gradient that is reduced where it is must not be copied by another mark meanwhile.
TEST_P(LargeGradientsOfSeveral, ThatOverlapAreRefusedOnEveryRank) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    if (group.memory().device().type != DeviceType::cpu) return;  // Copied in order there.
    GradientReducer reducer(group, large_parameters(group));
    const int last = group.size() - 1;
    for (const bool overlaps : {true, false}) {
      Gradients mine(group);
      if (!overlaps) {
        mine.mark(reducer);
        reducer.finish();
        for (std::size_t id = 0; id < gradient_shapes.size(); ++id)
          expect_mean(group, id, mine.array(id));
      } else if (group.rank() == last) {
        TensorView inside = mine.array(0);
        inside.data = static_cast<float*>(inside.data) + (limit - 9);
        inside.shape = gradient_shapes[1];
        reducer.mark_ready(0, mine.array(0));
        expect_error(Errc::invalid_argument, {"gradient of parameter 1 'p1' overlaps", "'p0'"},
                     [&] { reducer.mark_ready(1, inside); });
      } else {
        expect_error(Errc::mismatch, {"rank " + std::to_string(last), "overlaps"}, [&] {
          mine.mark(reducer);
          reducer.finish();
        });
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
