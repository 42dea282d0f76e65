#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class SubGroups : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, SubGroups, testing::ValuesIn(worlds()), CaseName());

class SubGroupsOfSeveral : public SubGroups {};
INSTANTIATE_TEST_SUITE_P(Worlds, SubGroupsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

/// Gathers `mine` over `group`: its members, in order.
std::vector<std::int32_t> members(ProcessGroup& group, int mine) {
  const Buffer in(group, array_of<std::int32_t>({mine}));
  const Buffer out(group, DType::i32, {group.size()});
  group.all_gather(in, out);
  const Array all = out.read();
  std::vector<std::int32_t> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(all.get<std::int32_t>(i));
  return ranks;
}

TEST_P(SubGroups, RanksOfOneColourFormAGroup) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    auto part = group.split(rank % 2);
    ASSERT_TRUE(part.has_value());
    std::vector<std::int32_t> want;
    for (int r = rank % 2; r < group.size(); r += 2) want.push_back(r);
    EXPECT_EQ(part->size(), static_cast<int>(want.size()));
    EXPECT_EQ(part->rank(), rank / 2);
    EXPECT_EQ(members(*part, rank), want);
    EXPECT_EQ(part->backend(), group.backend());
    expect_usable(*part);
    expect_usable(group);
  });
}

TEST_P(SubGroups, AListNamesTheMembers) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto part = group.size() > 2 ? group.subset({2, 0}) : group.subset({0});
    ASSERT_EQ(part.has_value(), group.rank() % 2 == 0 && group.rank() < 3);
    if (part) {
      EXPECT_EQ(members(*part, group.rank()),
                group.size() > 2 ? (std::vector{2, 0}) : std::vector{0});
    }
  });
}

TEST_P(SubGroups, TheKeyOrdersTheRanks) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int rank = group.rank();
    auto reversed = group.split(0, -rank);
    ASSERT_TRUE(reversed.has_value());
    EXPECT_EQ(reversed->rank(), size - 1 - rank);
    std::vector<std::int32_t> want;
    for (int r = size - 1; r >= 0; --r) want.push_back(r);
    EXPECT_EQ(members(*reversed, rank), want);

    // Roots, blocks and folds follow the rank in the sub-group.
    const Buffer data(*reversed, array_of<std::int32_t>({rank}));
    reversed->broadcast(data, 0);
    EXPECT_TRUE(same(data.read(), array_of<std::int32_t>({size - 1})));
    const Buffer in(*reversed, array_of<std::int32_t>({1 << rank}));
    const Buffer out(*reversed, DType::i32, {1});
    reversed->scan(in, out);
    EXPECT_TRUE(same(out.read(), array_of<std::int32_t>({(1 << size) - (1 << rank)})));
    const int peer = (reversed->rank() + 1) % size;
    Work sent = reversed->send_async(in, peer);
    reversed->recv(out, (reversed->rank() + size - 1) % size);
    sent.wait();
    EXPECT_TRUE(same(out.read(), array_of<std::int32_t>({1 << ((rank + 1) % size)})));
  });
}

TEST_P(SubGroups, EqualKeysKeepTheOrderOfTheParent) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto part = group.split(5, 7);
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->rank(), group.rank());
  });
}

TEST_P(SubGroups, ANegativeColourGetsNoGroup) {
  on_ranks(world(), [](ProcessGroup& group) {
    const bool member = group.rank() != 0;
    auto part = group.split(member ? 3 : -1);
    EXPECT_EQ(part.has_value(), member);
    if (part) {
      EXPECT_EQ(part->size(), group.size() - 1);
      expect_usable(*part);
    }
    expect_usable(group);
  });
}

TEST_P(SubGroups, ASubsetHasTheOrderOfItsList) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const std::vector<int> list =
        size == 1 ? std::vector{0} : std::vector{size - 1, 0};  // Not in the parent's order.
    auto part = group.subset(list);
    const auto place = std::ranges::find(list, group.rank());
    EXPECT_EQ(part.has_value(), place != list.end());
    if (part) {
      EXPECT_EQ(part->rank(), place - list.begin());
      EXPECT_EQ(members(*part, group.rank()), std::vector<std::int32_t>(list.begin(), list.end()));
    }
    expect_usable(group);
  });
}

TEST_P(SubGroups, ABadSubsetIsRefusedOnEveryRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const std::vector<std::vector<int>> bad{{}, {group.size()}, {-1}, {0, 0}};
    for (const std::vector<int>& list : bad)
      expect_error(Errc::invalid_argument, {"subset"}, [&] { (void)group.subset(list); });
    expect_usable(group);
  });
}

TEST_P(SubGroupsOfSeveral, DifferentSubsetListsAreAMismatch) {
  on_ranks(world(), [](ProcessGroup& group) {
    const std::vector<int> mine = group.rank() == 0 ? std::vector{0} : std::vector{0, 1};
    expect_error(Errc::mismatch, {}, [&] { (void)group.subset(mine); });
    expect_usable(group);
  });
}

TEST_P(SubGroups, NestedSplitsWork) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto outer = group.split(0, -group.rank());
    ASSERT_TRUE(outer.has_value());
    auto inner = outer->split(outer->rank() / 2, -outer->rank());
    ASSERT_TRUE(inner.has_value());
    // Reversed twice: the parent's order again, in pairs from the end.
    std::vector<std::int32_t> want;
    for (int r = 0; r < group.size(); ++r)
      if ((group.size() - 1 - r) / 2 == outer->rank() / 2) want.push_back(r);
    EXPECT_EQ(members(*inner, group.rank()), want);
    auto innermost = inner->split(0);
    ASSERT_TRUE(innermost.has_value());
    EXPECT_EQ(members(*innermost, group.rank()), want);
    expect_usable(*outer);
    expect_usable(group);
  });
}

TEST_P(SubGroups, CallsOfParentAndPartsInterleave) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto part = group.split(group.rank() % 2);
    auto mirror = group.split(0, -group.rank());
    ASSERT_TRUE(part && mirror);
    for (int i = 0; i < 10; ++i) {
      const Buffer a(group, array_of<std::int32_t>({1}));
      const Buffer b(*part, array_of<std::int32_t>({10}));
      const Buffer c(*mirror, array_of<std::int32_t>({100}));
      Work first = group.all_reduce_async(a);
      Work second = part->all_reduce_async(b);
      mirror->all_reduce(c);
      second.wait();
      first.wait();
      EXPECT_TRUE(same(a.read(), array_of<std::int32_t>({group.size()})));
      EXPECT_TRUE(same(b.read(), array_of<std::int32_t>({10 * part->size()})));
      EXPECT_TRUE(same(c.read(), array_of<std::int32_t>({100 * group.size()})));
    }
  });
}

TEST_P(SubGroups, ManySplitsInARowAreGroupsOfTheirOwn) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::vector<ProcessGroup> parts;
    std::set<std::string> names;
    for (int i = 0; i < 20; ++i) {
      auto part = group.split(group.rank() % (1 + i % 3), i % 2 == 0 ? 0 : -group.rank());
      ASSERT_TRUE(part.has_value());
      names.insert(part->name());
      parts.push_back(std::move(*part));
    }
    EXPECT_EQ(names.size(), parts.size()) << "two sub-groups have one name";
    for (const std::string& name : names)
      EXPECT_EQ(name.rfind(group.name(), 0), 0U) << name << " does not tell its parent";
    // In the opposite order; each group still matches its own calls.
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) expect_usable(*part);
    expect_usable(group);
  });
}

TEST_P(SubGroups, ASubGroupOutlivesItsParent) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    auto part = group.split(0);
    ASSERT_TRUE(part.has_value());
    { const ProcessGroup gone = std::move(group); }
    expect_usable(*part);
  });
}

TEST_P(SubGroups, ABrokenSubGroupDoesNotBreakItsParentOrSaysSo) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    auto part = group.split(0);
    ASSERT_TRUE(part.has_value());
    expect_usable(*part);
    group.barrier();
    if (group.rank() == 0) part->abort("only this one");
    expect_error(Errc::aborted, {"only this one"}, [&] {
      while (true) part->barrier();
    });
    if (shares_fate(world().backend) && group.size() > 1) {
      expect_error(Errc::aborted, {"only this one", part->name()}, [&] {
        while (true) group.barrier();
      });
      return;
    }
    expect_usable(group);
    auto another = group.split(0);
    ASSERT_TRUE(another.has_value());
    expect_usable(*another);
  });
}

class SubGroupsCompared : public SubGroups {};
INSTANTIATE_TEST_SUITE_P(Worlds, SubGroupsCompared, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

class SubGroupsRefused : public SubGroups {};
INSTANTIATE_TEST_SUITE_P(Worlds, SubGroupsRefused, testing::ValuesIn(worlds_that_refuse()),
                         CaseName());

TEST_P(SubGroupsRefused, ABadSubsetOfOneRankIsToldToTheOthers) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int last = group.size() - 1;
    for (const int wrong : {group.size(), -1}) {
      const std::vector<int> list{group.rank() == last ? wrong : 0};
      if (group.rank() == last)
        expect_error(Errc::invalid_argument, {"subset", std::to_string(wrong)},
                     [&] { (void)group.subset(list); });
      else
        expect_error(Errc::mismatch,
                     {"rank " + std::to_string(last), "refused", "subset", std::to_string(wrong)},
                     [&] { (void)group.subset(list); });
      expect_usable(group);
    }
    auto part = group.subset(std::vector{last});
    EXPECT_EQ(part.has_value(), group.rank() == last);
  });
}

TEST_P(SubGroupsCompared, AMismatchInOneIsNamedThere) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto part = group.split(0);
    ASSERT_TRUE(part.has_value());
    const Buffer data(*part, DType::f32, {2});
    const Error error = expect_error(Errc::mismatch, {"broadcast", "all_reduce"}, [&] {
      if (part->rank() == 0)
        part->broadcast(data, 0);
      else
        part->all_reduce(data);
    });
    EXPECT_EQ(error.where().group, part->name());
    expect_usable(*part);
    expect_usable(group);
  });
}

// Groups of the ranks that are left.

class Shrink : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Shrink, testing::ValuesIn(worlds_of_several()), CaseName());

void expect_sums(ProcessGroup& group, int size) {
  EXPECT_EQ(group.size(), size);
  const Buffer data(group, array_of<float>({static_cast<float>(group.rank() + 1)}));
  group.all_reduce(data);
  EXPECT_TRUE(same(data.read(), array_of<float>({static_cast<float>(size * (size + 1) / 2)})));
}

TEST_P(Shrink, LeavesOutARankThatHasLeft) {
  RankBarrier done(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    const int gone = 0;  // Which numbers the others anew.
    const int rank = group.rank();
    if (rank == gone) {
      { const auto ended = std::move(group); }
      done.wait();
      return;
    }
    expect_error({Errc::peer_lost, Errc::aborted, Errc::timeout}, {},
                 [&] { group.barrier({.timeout = 5s}); });
    auto smaller = group.shrink(std::array{gone});
    EXPECT_EQ(smaller.rank(), rank - 1);
    EXPECT_EQ(smaller.name(), group.name());
    expect_sums(smaller, world().size - 1);
    done.wait();
  });
}

TEST_P(Shrink, WaitsForARankThatIsLate) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    group.abort("the test breaks it");
    expect_error(Errc::aborted, {}, [&] { group.barrier(); });
    if (group.rank() == last()) std::this_thread::sleep_for(100ms);
    auto again = group.shrink();
    expect_sums(again, world().size);
    // And once more, from a group that works.
    auto more = again.shrink();
    expect_sums(more, world().size);
  });
}

TEST_P(Shrink, LeavesOutARankThatDoesNotCallInTime) {
  RankBarrier done(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    group.abort("the test breaks it");
    if (group.rank() == last()) {
      done.wait();
      expect_error(Errc::peer_lost, {"rank " + std::to_string(last()), "agreed on the ranks 0"},
                   [&] { (void)group.shrink(); });
      return;
    }
    auto smaller = group.shrink({}, 300ms);
    expect_sums(smaller, world().size - 1);
    done.wait();
  });
}

TEST_P(Shrink, RefusesToLeaveOutItself) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    for (const int rank : {-1, group.size(), group.rank()})
      expect_error(Errc::invalid_argument, {"rank " + std::to_string(rank)},
                   [&] { (void)group.shrink(std::array{rank}); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
