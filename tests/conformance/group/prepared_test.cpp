#include <tutti/prepared.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// Lists that are launched several times. A backend may capture them into a graph, so no list holds
// messages or a barrier.

namespace tutti::test {
namespace {

class PreparedLists : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, PreparedLists, testing::ValuesIn(worlds()), CaseName());

int sum_of(int size, int step) {
  return size * (size - 1) / 2 + size * step;
}

/// One list of several kinds, over arrays of its own.
struct SeveralKinds {
  explicit SeveralKinds(ProcessGroup& g)
      : group(g),
        sum(g, number(0)),
        largest(g, number(0)),
        data(g, number(0)),
        mine(g, number(0)),
        all(g, DType::i32, {g.size()}),
        slices(g, DType::i32, {g.size()}),
        slice(g, DType::i32, {1}) {}

  Prepared prepare() const {
    Coalesce list(group);
    list.add(group.all_reduce_async(sum));
    list.add(group.all_reduce_async(largest, ReduceOp::max));
    list.add(group.broadcast_async(data, group.size() - 1));
    list.add(group.all_gather_async(mine, all));
    list.add(group.reduce_scatter_async(slices, slice));
    return list.prepare();
  }

  void fill(int step) const {
    const Array own = number(group.rank() + step);
    for (const Buffer* array : {&sum, &largest, &data, &mine}) array->write(own);
    std::vector<Array> of_ranks;
    for (int r = 0; r < group.size(); ++r) of_ranks.push_back(number(r + step));
    slices.write(concat(of_ranks));
  }

  void expect(int step) const {
    const int size = group.size();
    EXPECT_TRUE(same(sum.read(), number(sum_of(size, step)))) << "step " << step;
    EXPECT_TRUE(same(largest.read(), number(size - 1 + step))) << "step " << step;
    EXPECT_TRUE(same(data.read(), number(size - 1 + step))) << "step " << step;
    std::vector<Array> of_ranks;
    for (int r = 0; r < size; ++r) of_ranks.push_back(number(r + step));
    EXPECT_TRUE(same(all.read(), concat(of_ranks))) << "step " << step;
    EXPECT_TRUE(same(slice.read(), number(size * (group.rank() + step)))) << "step " << step;
  }

  ProcessGroup& group;
  Buffer sum;
  Buffer largest;
  Buffer data;
  Buffer mine;
  Buffer all;
  Buffer slices;
  Buffer slice;
};

TEST_P(PreparedLists, EveryLaunchReducesWhatTheArraysHoldThen) {
  on_ranks(world(), [](ProcessGroup& group) {
    const SeveralKinds arrays(group);
    Prepared list = arrays.prepare();
    for (int step = 0; step < 5; ++step) {
      arrays.fill(step);
      list.launch().wait();
      arrays.expect(step);
    }
    expect_usable(group);
  });
}

TEST_P(PreparedLists, PreparingSendsNothingAndALaunchIsOneCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const SeveralKinds arrays(group);
    arrays.fill(0);
    const auto before = group.sequence_number();
    Prepared list = arrays.prepare();
    EXPECT_EQ(group.sequence_number(), before);
    EXPECT_TRUE(same(arrays.sum.read(), number(group.rank())));
    for (int step = 0; step < 3; ++step) list.launch().wait();
    EXPECT_EQ(group.sequence_number(), before + 3);
    EXPECT_EQ(group.trace().back().ops, 5U);
  });
}

TEST_P(PreparedLists, TwoListsInTurnWithOtherCallsBetween) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const SeveralKinds first(group);
    const SeveralKinds second(group);
    const Buffer other(group, number(0));
    Prepared one = first.prepare();
    Prepared two = second.prepare();
    for (int step = 0; step < 4; ++step) {
      first.fill(step);
      second.fill(10 + step);
      other.write(number(step));
      one.launch().wait();
      group.all_reduce(other);
      two.launch().wait();
      first.expect(step);
      second.expect(10 + step);
      EXPECT_TRUE(same(other.read(), number(size * step)));
    }
  });
}

TEST_P(PreparedLists, ALaunchMayBeginBeforeTheOneBeforeItHasEnded) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const Buffer first(group, number(1));
    const Buffer second(group, number(2));
    Coalesce calls(group);
    calls.add(group.all_reduce_async(first));
    calls.add(group.all_reduce_async(second));
    Prepared list = calls.prepare();
    std::vector<Work> works;
    int product = 1;
    for (int launch = 0; launch < 5; ++launch) {
      works.push_back(list.launch());
      product *= size;
    }
    for (Work& work : works) work.wait();
    EXPECT_TRUE(same(first.read(), number(product)));
    EXPECT_TRUE(same(second.read(), number(2 * product)));
  });
}

TEST_P(PreparedLists, UnevenRowsAreCopied) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    Layout layout(index(size), 1);
    layout.back() = 3;
    const Layout expected = layout;
    const Buffer mine(group, DType::i32, {layout[index(group.rank())]});
    const Buffer all(group, DType::i32, {total(layout)});
    const Buffer whole(group, DType::i32, {total(layout)});
    const Buffer back(group, DType::i32, {layout[index(group.rank())]});
    const auto prepare = [&] {
      Coalesce calls(group);
      calls.add(group.all_gather_async(mine, all, layout));
      calls.add(group.reduce_scatter_async(whole, back, layout));
      return calls.prepare();
    };
    Prepared list = prepare();  // The Coalesce has its own copies.
    layout.assign(layout.size(), -1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto rows = make_parts(DType::i32, expected, Shape{}, step);
      mine.write(rows[index(group.rank())]);
      whole.write(concat(rows));
      list.launch().wait();
      EXPECT_TRUE(same(all.read(), concat(rows)));
      Array sums = rows[index(group.rank())];
      for (std::int64_t i = 0; i < sums.numel(); ++i)
        sums.put(i,
                 static_cast<std::int32_t>(static_cast<std::uint32_t>(sums.get<std::int32_t>(i)) *
                                           static_cast<std::uint32_t>(size)));
      EXPECT_TRUE(same(back.read(), sums));
    }
  });
}

TEST_P(PreparedLists, AListOverTwoGroupsIsOneWork) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto half = group.split(group.rank() % 2);
    ASSERT_TRUE(half.has_value());
    const Buffer sum(group, number(0));
    const Buffer part(*half, number(0));
    Coalesce calls({&group, &*half});
    calls.add(half->all_reduce_async(part));
    calls.add(group.all_reduce_async(sum));
    Prepared list = calls.prepare();
    for (int step = 1; step < 4; ++step) {
      sum.write(number(step));
      part.write(number(2 * step));
      list.launch().wait();
      EXPECT_TRUE(same(sum.read(), number(step * group.size())));
      EXPECT_TRUE(same(part.read(), number(2 * step * half->size())));
    }
  });
}

TEST_P(PreparedLists, KeepTheirGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    std::optional<ProcessGroup> part = group.split(0);
    const Buffer data(group, number(1));
    Coalesce calls(*part);
    calls.add(part->all_reduce_async(data));
    Prepared list = calls.prepare();
    part.reset();
    list.launch().wait();
    EXPECT_TRUE(same(data.read(), number(group.size())));
  });
}

TEST_P(PreparedLists, AMessageIsRefusedAndTheGroupIsBroken) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer sum(group, number(1));
    const Buffer data(group, number(1));
    Coalesce calls(group);
    calls.add(group.all_reduce_async(sum));
    calls.add(group.send_async(data, (group.rank() + 1) % group.size()));
    expect_error(Errc::unsupported, {"prepare()", "collectives alone", "send", "launch()"},
                 [&] { (void)calls.prepare(); });
    EXPECT_TRUE(same(sum.read(), number(1)));
    expect_error(Errc::aborted, {"prepare()"}, [&] { group.barrier(); });
  });
}

TEST_P(PreparedLists, AnEmptyListIsRefusedAndTheGroupGoesOn) {
  on_ranks(world(), [](ProcessGroup& group) {
    Coalesce calls(group);
    expect_error(Errc::invalid_argument, {"prepare()", "no call"}, [&] { (void)calls.prepare(); });
    expect_usable(group);
  });
}

TEST_P(PreparedLists, PrepareIsTheEndOfTheCoalesce) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Coalesce calls(group);
    Work one = group.all_reduce_async(data);
    Prepared list = calls.prepare();
    expect_error(Errc::invalid_argument, {"launch()", "already"}, [&] { (void)calls.launch(); });
    expect_error(Errc::invalid_argument, {"prepare()", "already"}, [&] { (void)calls.prepare(); });
    expect_error(Errc::invalid_argument, {"add()"}, [&] { calls.add(std::move(one)); });
    group.all_reduce(data);  // Is collected no more.
    EXPECT_TRUE(same(data.read(), number(group.size())));
    list.launch().wait();
    EXPECT_TRUE(same(data.read(), number(group.size() * group.size())));
  });
}

TEST_P(PreparedLists, ABrokenGroupLaunchesNothing) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Coalesce calls(group);
    calls.add(group.all_reduce_async(data));
    Prepared list = calls.prepare();
    list.launch().wait();
    group.abort("the test");
    expect_error(Errc::aborted, {"the test"}, [&] { list.launch().wait(); });
    expect_error(Errc::aborted, {"the test"}, [&] { list.launch().wait(); });
  });
}

class PreparedListsCompared : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
std::vector<World> compared() {
  std::vector<World> chosen;
  for (const World& world : worlds_that_compare())
    if (world.size > 1) chosen.push_back(world);
  return chosen;
}
INSTANTIATE_TEST_SUITE_P(Worlds, PreparedListsCompared, testing::ValuesIn(compared()), CaseName());

// Nothing but the preparation differs: the ranks make the same operations.
TEST_P(PreparedListsCompared, ALaunchBesideAnOrdinaryCallIsAMismatch) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer first(group, number(1));
    const Buffer second(group, number(2));
    Coalesce calls(group);
    calls.add(group.all_reduce_async(first));
    calls.add(group.all_reduce_async(second));
    std::optional<Prepared> list;
    if (group.rank() == 0) list = calls.prepare();
    expect_error(Errc::mismatch, {"2 coalesced: all_reduce", "prepared", "rank 0"},
                 [&] { (list ? list->launch() : calls.launch()).wait(); });
    EXPECT_TRUE(same(first.read(), number(1)));
    expect_usable(group);
  });
}

// The backend may treat the first launches of a list as no later one.
TEST_P(PreparedListsCompared, TwoEqualListsAreLaunchedInOneOrder) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    const auto prepare = [&] {
      Coalesce calls(group);
      calls.add(group.all_reduce_async(data));
      return calls.prepare();
    };
    Prepared one = prepare();
    Prepared two = prepare();
    one.launch().wait();
    expect_error(Errc::mismatch, {"prepared (launch 1)", "prepared (launch 2)"},
                 [&] { (group.rank() == 0 ? one : two).launch().wait(); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
