#include <tutti/ddp/gradient_reducer.hpp>

#include <cmath>
#include <optional>

#include "conformance/ddp/network.hpp"
#include "conformance/observed.hpp"

// Tests a rank that makes a mistake or dies: every rank gets an error with the rank and the
// parameter.

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::Parameter;
using ddp::ReducerOptions;

class ReducerFaults : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerFaults, testing::ValuesIn(worlds_of_several()), CaseName());

/// Three gradients of 8 elements with the value rank + 1, each in its own bucket.
struct Three {
  explicit Three(ProcessGroup& group) {
    Array content(DType::f64, {8});
    for (std::int64_t i = 0; i < 8; ++i) content.put<double>(i, group.rank() + 1);
    for (int i = 0; i < 3; ++i) arrays.emplace_back(group, content);
  }
  static std::vector<Parameter> parameters(ProcessGroup& group) {
    std::vector<Parameter> list;
    for (const char* name : {"first", "second", "third"})
      list.push_back({name, {nullptr, DType::f64, {8}, group.memory().device()}});
    return list;
  }
  static ReducerOptions options() { return {.first_bucket_cap = 64, .bucket_cap = 64}; }
  void mark_all(GradientReducer& reducer) {
    for (std::size_t id = 3; id-- > 0;) reducer.mark_ready(id, arrays[id]);
  }
  std::vector<Buffer> arrays;
};

void expect_next_step_is_right(GradientReducer& reducer, ProcessGroup& group) {
  Three next(group);
  next.mark_all(reducer);
  reducer.finish();
  EXPECT_TRUE(reducer.is_reduced());
  for (const Buffer& buffer : next.arrays) {
    const Array array = buffer.read();
    for (std::int64_t i = 0; i < 8; ++i)
      EXPECT_DOUBLE_EQ(array.get<double>(i), (group.size() + 1) / 2.0);
  }
}

TensorView with(const Buffer& buffer, DType dtype, const Shape& shape) {
  TensorView other = buffer;
  other.dtype = dtype;
  other.shape = shape;
  return other;
}

/// The last rank makes the mistake `wrong` in step 1. Expects an error with these texts on all
/// ranks, and that the next step succeeds.
void expect_mistake(const World& world, const std::vector<std::string>& texts,
                    const std::function<void(GradientReducer&, Three&)>& wrong) {
  on_ranks(world, [&](ProcessGroup& group) {
    GradientReducer reducer(group, Three::parameters(group), Three::options());
    expect_next_step_is_right(reducer, group);
    Three mine(group);
    const int last = group.size() - 1;
    if (group.rank() == last) {
      expect_error(Errc::invalid_argument, texts, [&] { wrong(reducer, mine); });
    } else {
      auto all = texts;
      all.push_back("rank " + std::to_string(last) + ": ");
      expect_error(Errc::mismatch, all, [&] {
        mine.mark_all(reducer);
        reducer.finish();
      });
    }
    EXPECT_FALSE(reducer.is_reduced());
    expect_next_step_is_right(reducer, group);
  });
}

TEST_P(ReducerFaults, ASkippedParameterIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "parameter 1 'second' has no gradient"},
                 [](GradientReducer& reducer, Three& mine) {
                   reducer.mark_ready(2, mine.arrays[2]);
                   reducer.mark_ready(0, mine.arrays[0]);
                   reducer.finish();
                 });
}

TEST_P(ReducerFaults, AStepWithoutMarksIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "parameter 0 'first' and 2 more have no gradient"},
                 [](GradientReducer& reducer, Three&) { reducer.finish(); });
}

// Ranks that end a step in different ways.
TEST_P(ReducerFaults, AFinishWithOtherRowsIsNamedOnEveryRank) {
  struct Mistake {
    bool average;
    std::optional<double> rows;
    const char* text;
    bool in_micro_batch = false;  // finish() within no_sync(), before the right one.
  };
  for (const Mistake& mistake :
       {Mistake{true, {}, "finish() was called with average_over_rows"},
        Mistake{true, -2, "the number of rows is -2; pass one that is 0 or more, and finite"},
        Mistake{true, NAN, "the number of rows is nan"},
        Mistake{true, {}, "the number of rows is nan", true},
        Mistake{false, 3, "finish(rows) was called without average_over_rows"}})
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      auto options = Three::options();
      options.average_over_rows = mistake.average;
      GradientReducer reducer(group, Three::parameters(group), options);
      const auto finish = [&](std::optional<double> n) {
        n ? reducer.finish(*n) : reducer.finish();
      };
      const auto right = mistake.average ? std::optional(1.0) : std::nullopt;
      const bool wrong = group.rank() == group.size() - 1;
      if (wrong && mistake.in_micro_batch) {
        const auto scope = reducer.no_sync();
        reducer.finish();
      }
      Three mine(group);
      mine.mark_all(reducer);
      expect_error(wrong ? Errc::invalid_argument : Errc::mismatch, {"step 0", mistake.text},
                   [&] { finish(wrong && !mistake.in_micro_batch ? mistake.rows : right); });
      Three next(group);
      next.mark_all(reducer);
      finish(right);
      EXPECT_DOUBLE_EQ(next.arrays[0].read().get<double>(0), (group.size() + 1) / 2.0);
    });
}

TEST_P(ReducerFaults, ASecondMarkIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "parameter 2 'third' was marked twice"},
                 [](GradientReducer& reducer, Three& mine) {
                   reducer.mark_ready(2, mine.arrays[2]);
                   reducer.mark_ready(2, mine.arrays[2]);
                 });
}

TEST_P(ReducerFaults, AnotherShapeIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "'second' is f64 [4, 2]", "the parameter is f64 [8]"},
                 [](GradientReducer& reducer, Three& mine) {
                   reducer.mark_ready(2, mine.arrays[2]);
                   reducer.mark_ready(1, with(mine.arrays[1], DType::f64, {4, 2}));
                 });
}

TEST_P(ReducerFaults, AnotherDtypeIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "'third' is f32 [8]"},
                 [](GradientReducer& reducer, Three& mine) {
                   reducer.mark_ready(2, with(mine.arrays[2], DType::f32, {8}));
                 });
}

TEST_P(ReducerFaults, AnUnknownParameterIsNamedOnEveryRank) {
  expect_mistake(
      GetParam(), {"step 1", "parameter 3 was marked; the reducer has 3"},
      [](GradientReducer& reducer, Three& mine) { reducer.mark_ready(3, mine.arrays[2]); });
}

TEST_P(ReducerFaults, ANullGradientIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "gradient of parameter 2 'third' is null"},
                 [](GradientReducer& reducer, Three& mine) {
                   TensorView null = mine.arrays[2];
                   null.data = nullptr;
                   reducer.mark_ready(2, null);
                 });
}

TEST_P(ReducerFaults, AnEmptyStepWithAMarkIsNamedOnEveryRank) {
  expect_mistake(GetParam(), {"step 1", "step_empty() after a mark"},
                 [](GradientReducer& reducer, Three& mine) {
                   reducer.mark_ready(2, mine.arrays[2]);
                   reducer.step_empty();
                 });
}

TEST_P(ReducerFaults, APlaceOfBeforeTheRebuildIsNamedOnEveryRank) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Three::parameters(group), Three::options());
    const TensorView before = reducer.gradient(0);
    Three first(group);
    for (std::size_t id = 0; id < 3; ++id) reducer.mark_ready(id, first.arrays[id]);
    reducer.finish();
    ASSERT_NE(before.data, reducer.gradient(0).data);
    expect_error({Errc::invalid_argument, Errc::mismatch},
                 {"parameter 0 'first' is not at its place in the bucket"}, [&] {
                   if (group.rank() == 0) reducer.mark_ready(0, before);
                   Three mine(group);
                   mine.mark_all(reducer);
                   reducer.finish();
                 });
    expect_next_step_is_right(reducer, group);
  });
}

TEST_P(ReducerFaults, AfterAMistakeFinishThrowsItAgain) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Three::parameters(group), Three::options());
    Three mine(group);
    if (group.rank() == 0) {
      reducer.mark_ready(1, mine.arrays[1]);
      expect_error(Errc::invalid_argument, {"twice"},
                   [&] { reducer.mark_ready(1, mine.arrays[1]); });
      expect_error(Errc::invalid_argument, {"twice"}, [&] { reducer.finish(); });
    } else {
      mine.mark_all(reducer);
      expect_error(Errc::mismatch, {"rank 0: ", "twice"}, [&] { reducer.finish(); });
    }
    expect_next_step_is_right(reducer, group);
  });
}

TEST_P(ReducerFaults, DifferentUnusedParametersAreAMismatch) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Three::parameters(group), Three::options());
    Three mine(group);
    reducer.mark_ready(2, mine.arrays[2]);
    reducer.mark_ready(0, mine.arrays[0]);
    if (group.rank() == 0)
      reducer.mark_unused(1);
    else
      reducer.mark_ready(1, mine.arrays[1]);
    expect_error(Errc::mismatch,
                 {"parameter 1 'second' has a gradient on ranks 1", "is unused on ranks 0",
                  "find_unused_parameters"},
                 [&] { reducer.finish(); });
    expect_next_step_is_right(reducer, group);
  });
}

TEST_P(ReducerFaults, DifferentParametersAreNamedAtTheStart) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int last = group.size() - 1;
    const auto differs =
        [&](const std::vector<std::string>& texts,
            const std::function<void(std::vector<Parameter>&, ReducerOptions&)>& change) {
          auto parameters = Three::parameters(group);
          auto options = Three::options();
          if (group.rank() == last) change(parameters, options);
          expect_error(Errc::mismatch, texts, [&] { GradientReducer(group, parameters, options); });
        };
    const std::string name = "rank " + std::to_string(last) + ": ";
    differs({"rank 0: parameter 1 'second' f64 [8]", name + "parameter 1 'second' f64 [2, 4]"},
            [](auto& p, auto&) {
              p[1].value.shape = {2, 4};
            });
    differs({"rank 0: parameter 2 'third' f64", name + "parameter 2 'third' f32"},
            [](auto& p, auto&) { p[2].value.dtype = DType::f32; });
    differs({"rank 0: parameter 0 'first'", name + "parameter 0 'other'"},
            [](auto& p, auto&) { p[0].name = "other"; });
    differs({"rank 0: parameter 2 'third'", name + "nothing more"},
            [](auto& p, auto&) { p.pop_back(); });
    differs({"find_unused_parameters false", "find_unused_parameters true"},
            [](auto&, auto& o) { o.find_unused_parameters = true; });
    differs({"average_over_rows false", "average_over_rows true"},
            [](auto&, auto& o) { o.average_over_rows = true; });
    differs({"gradient_as_bucket_view false", "gradient_as_bucket_view true"},
            [](auto&, auto& o) { o.gradient_as_bucket_view = true; });
    expect_usable(group);
  });
}

TEST_P(ReducerFaults, ARefusedArgumentOfOneRankIsAnErrorOnAll) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int last = group.size() - 1;
    auto parameters = Three::parameters(group);
    if (group.rank() == last) parameters[1].value.dtype = DType::i32;
    const std::string problem =
        "parameter 1 'second' is i32; gradients are floats or complex numbers";
    if (group.rank() == last)
      expect_error(Errc::invalid_argument, {problem}, [&] { GradientReducer(group, parameters); });
    else
      expect_error(Errc::mismatch, {problem, "rank " + std::to_string(last)},
                   [&] { GradientReducer(group, parameters); });
    expect_error(Errc::invalid_argument, {"bucket_cap is 0"},
                 [&] { GradientReducer(group, Three::parameters(group), {.bucket_cap = 0}); });
    expect_usable(group);
  });
}

constexpr std::initializer_list<Errc> ends = {Errc::aborted, Errc::peer_lost};

TEST_P(ReducerFaults, ADestroyedReducerAbortsTheStepAndCommunicatesNothing) {
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    std::optional<GradientReducer> reducer;
    reducer.emplace(group, Three::parameters(group), Three::options());
    Three mine(group);
    const int last = group.size() - 1;
    if (group.rank() == last) {
      reducer->mark_ready(2, mine.arrays[2]);
      const auto calls = calls_of(group);
      reducer.reset();
      EXPECT_EQ(calls_of(group), calls);
      return;
    }
    expect_error(std::vector<Errc>(ends), {"destroyed within step 0"}, [&] {
      mine.mark_all(*reducer);
      reducer->finish();
    });
  });
}

TEST_P(ReducerFaults, ARankThatDiesInAStepIsAnErrorOnTheOthers) {
  RankBarrier dead(GetParam().size);
  const auto store = make_memory_store();
  on_fresh_ranks(GetParam(),
                 [&](ProcessGroup& group) {
                   const int last = group.size() - 1;
                   Three mine(group);
                   {
                     GradientReducer reducer(group, Three::parameters(group), Three::options());
                     if (group.rank() == last) {
                       reducer.mark_ready(2, mine.arrays[2]);
                       group.abort("this rank is dead");
                     } else {
                       expect_error(std::vector<Errc>(ends), {"dead"}, [&] {
                         mine.mark_all(reducer);
                         reducer.finish();
                       });
                     }
                   }
                   dead.wait();
                   // The other ranks continue in a new group.
                   if (group.rank() == last) return;
                   World survivors = GetParam();
                   survivors.size -= 1;
                   GroupOptions options = group_options(survivors, group.rank(), store);
                   options.name = "survivors";
                   ProcessGroup rest = ProcessGroup::create(options);
                   GradientReducer reducer(rest, Three::parameters(group), Three::options());
                   expect_next_step_is_right(reducer, rest);
                 },
                 {.store = store});
}

TEST_P(ReducerFaults, AHookThatThrowsAbortsTheGroup) {
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    GradientReducer reducer(group, Three::parameters(group), Three::options());
    const int last = group.size() - 1;
    reducer.set_hook([last](ddp::Bucket& bucket) -> Work {
      if (bucket.group().rank() == last && bucket.index() == 1)
        throw std::runtime_error("no more factors");
      return bucket.group().all_reduce_async(bucket.buffer(), bucket.op(), bucket.call());
    });
    Three mine(group);
    try {
      mine.mark_all(reducer);
      reducer.finish();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("no more factors"), std::string::npos)
          << error.what();
    }
    // A program may have ignored the error.
    const auto refused = [&](const std::function<void()>& call) {
      expect_error(Errc::aborted,
                   {"GradientReducer: the group is broken, make a new one; first cause: ",
                    "no more factors"},
                   call);
    };
    refused([&] { reducer.mark_ready(0, mine.arrays[0]); });  // Of the last bucket.
    refused([&] { reducer.mark_unused(0); });
    refused([&] { reducer.step_empty(); });
    EXPECT_FALSE(reducer.is_reduced());
  });
}

TEST_P(ReducerFaults, WithoutTheCheckASkippedParameterAbortsTheGroup) {
  RankBarrier stepped(GetParam().size);
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    auto options = Three::options();
    options.check_steps = false;
    GradientReducer reducer(group, Three::parameters(group), options);
    expect_next_step_is_right(reducer, group);
    stepped.wait();  // The abort would end a peer's step too.
    Three mine(group);
    expect_error({Errc::invalid_argument, Errc::aborted, Errc::peer_lost},
                 {"parameter 1 'second' has no gradient"}, [&] {
                   reducer.mark_ready(2, mine.arrays[2]);
                   if (group.rank() != 0) reducer.mark_ready(1, mine.arrays[1]);
                   reducer.mark_ready(0, mine.arrays[0]);
                   reducer.finish();
                 });
  });
}

}  // namespace
}  // namespace tutti::test
