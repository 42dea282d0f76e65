#include <algorithm>
#include <vector>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// Calls with one array per rank on a side.

namespace tutti::test {
namespace {

class ArrayLists : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ArrayLists, testing::ValuesIn(worlds()), CaseName());

using Ints = std::vector<std::int32_t>;

/// Element i of the array that `from` has for `to`.
Ints ints_between(int from, int to, std::int64_t count) {
  Ints all;
  for (int i = 0; i < count; ++i) all.push_back(10000 * from + 100 * to + i);
  return all;
}

std::vector<TensorView> views_of(std::vector<Ints>& arrays) {
  return {arrays.begin(), arrays.end()};
}

TEST_P(ArrayLists, AllGatherWritesEachRanksArrayIntoItsOwn) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const std::int64_t count : {0, 1, 7, 5000}) {
      for (const bool async : {false, true}) {
        const Ints in = ints_between(group.rank(), 0, count);
        std::vector<Ints> arrays(index(group.size()), Ints(static_cast<std::size_t>(count), -1));
        const auto outs = views_of(arrays);
        if (async)
          group.all_gather_async(in, outs, soon).wait();
        else
          group.all_gather(in, outs, soon);
        for (int r = 0; r < group.size(); ++r)
          EXPECT_EQ(arrays[index(r)], ints_between(r, 0, count)) << "rank " << r;
      }
    }
  });
}

TEST_P(ArrayLists, ArraysOneBehindTheOtherAndOwnOnesInPlace) {
  on_ranks(world(), [](ProcessGroup& group) {
    constexpr std::int64_t count = 6;
    Ints all(index(group.size()) * count, -1);
    std::vector<TensorView> outs;
    for (int r = 0; r < group.size(); ++r)
      outs.push_back(view(std::span(all).subspan(index(r) * count, count), {2, 3}));
    const auto own = outs[index(group.rank())].values<std::int32_t>();
    const auto mine = ints_between(group.rank(), 1, count);
    std::ranges::copy(mine, own.begin());
    group.all_gather(outs[index(group.rank())], outs, soon);
    for (int r = 0; r < group.size(); ++r) {
      const auto found = outs[index(r)].values<std::int32_t>();
      EXPECT_EQ(Ints(found.begin(), found.end()), ints_between(r, 1, count));
    }
    // Another rank's array is the input: the call must not write into it before it has read it.
    const auto next = outs[index((group.rank() + 1) % group.size())];
    const auto values = next.values<std::int32_t>();
    const Ints sent(values.begin(), values.end());
    group.all_gather(next, outs, soon);
    for (int r = 0; r < group.size(); ++r) {
      const auto found = outs[index(r)].values<std::int32_t>();
      EXPECT_EQ(Ints(found.begin(), found.end()), ints_between((r + 1) % group.size(), 1, count));
    }
  });
}

TEST_P(ArrayLists, AllToAllSendsEachArrayToItsRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int me = group.rank();
    // Uneven, and some are empty.
    const auto count = [](int from, int to) { return (from * 3 + to * 5) % 7; };
    for (const bool async : {false, true}) {
      std::vector<Ints> sent;
      std::vector<Ints> arrays;
      for (int r = 0; r < group.size(); ++r) {
        sent.push_back(ints_between(me, r, count(me, r)));
        arrays.emplace_back(static_cast<std::size_t>(count(r, me)), -1);
      }
      const std::vector<ConstTensorView> ins(sent.begin(), sent.end());
      const auto outs = views_of(arrays);
      if (async)
        group.all_to_all_async(ins, outs, soon).wait();
      else
        group.all_to_all(ins, outs, soon);
      for (int r = 0; r < group.size(); ++r)
        EXPECT_EQ(arrays[index(r)], ints_between(r, me, count(r, me))) << "from rank " << r;
    }
  });
}

TEST_P(ArrayLists, AllToAllMayWriteIntoWhatItSends) {
  on_ranks(world(), [](ProcessGroup& group) {
    Ints all;
    for (int r = 0; r < group.size(); ++r) {
      const auto part = ints_between(group.rank(), r, 3);
      all.insert(all.end(), part.begin(), part.end());
    }
    std::vector<TensorView> outs;
    for (int r = 0; r < group.size(); ++r)
      outs.emplace_back(std::span(all).subspan(index(r) * 3, 3));
    const std::vector<ConstTensorView> ins(outs.begin(), outs.end());
    group.all_to_all(ins, outs, soon);
    for (int r = 0; r < group.size(); ++r) {
      const auto found = outs[index(r)].values<std::int32_t>();
      EXPECT_EQ(Ints(found.begin(), found.end()), ints_between(r, group.rank(), 3));
    }
  });
}

// The Work owns its scratch arrays, and the lists of views are read when the call is issued.
TEST_P(ArrayLists, SeveralCallsInFlightAndTemporaryLists) {
  on_ranks(world(), [](ProcessGroup& group) {
    constexpr int calls = 5;
    std::vector<std::vector<Ints>> arrays;
    std::vector<Ints> sent;
    std::vector<Work> works;
    for (int i = 0; i < calls; ++i) {
      sent.push_back(ints_between(group.rank(), i, 9));
      arrays.emplace_back(index(group.size()), Ints(9, -1));
    }
    for (int i = 0; i < calls; ++i)
      works.push_back(group.all_gather_async(sent[index(i)], views_of(arrays[index(i)]), soon));
    Work::all(works).wait();
    for (int i = 0; i < calls; ++i)
      for (int r = 0; r < group.size(); ++r)
        EXPECT_EQ(arrays[index(i)][index(r)], ints_between(r, i, 9));
  });
}

TEST_P(ArrayLists, AWrongListIsAnErrorOnAllRanks) {
  const auto cells = worlds_that_refuse();
  const auto same = [&](const World& w) { return to_string(w) == to_string(world()); };
  if (std::ranges::none_of(cells, same)) GTEST_SKIP() << "the backend breaks";
  on_ranks(world(), [](ProcessGroup& group) {
    const bool wrong = group.rank() == 0;
    const auto expect = [&](const std::vector<std::string>& texts, const auto& call) {
      if (wrong)
        expect_error(Errc::invalid_argument, texts, call);
      else
        expect_error(Errc::mismatch, {"rank 0", "refused", texts.back()}, call);
    };
    const Ints in(4);
    std::vector<Ints> arrays(index(group.size()), Ints(4));
    auto outs = views_of(arrays);
    const std::vector<ConstTensorView> ins(index(group.size()), in);
    if (wrong) outs.pop_back();
    expect({"all_gather", "arrays; the world size is"}, [&] { group.all_gather(in, outs, soon); });
    expect({"all_to_all", "arrays; the world size is"}, [&] { group.all_to_all(ins, outs, soon); });
    outs = views_of(arrays);
    if (wrong) outs[0].shape = {3};
    expect({"outs[0] is [3] and in is [4]"},
           [&] { group.all_gather_async(in, outs, soon).wait(); });
    outs = views_of(arrays);
    if (wrong) outs[0].dtype = DType::f32;
    expect({"outs[0] is f32 and in is i32"}, [&] { group.all_gather(in, outs, soon); });
    outs = views_of(arrays);
    if (wrong) outs[0].data = nullptr;
    expect({"outs[0] is null"}, [&] { group.all_to_all_async(ins, outs, soon).wait(); });
    expect_usable(group);
  });
}

TEST_P(ArrayLists, ACoalesceTakesNone) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Ints in(4);
    std::vector<Ints> arrays(index(group.size()), Ints(4));
    const auto outs = views_of(arrays);
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"all_gather", "Coalesce", "one array per side"},
                   [&] { (void)group.all_gather_async(in, outs, soon); });
    }
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
