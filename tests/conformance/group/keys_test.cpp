// The keys of groups in the store.

#include <array>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "conformance/cells.hpp"
#include "support/store_over.hpp"

namespace tutti::test {
namespace {

class KeysOfGroups : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, KeysOfGroups, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(KeysOfGroups, AreRemovedFromTheStoreWhenTheGroupsEnd) {
  const auto store = std::make_shared<ListedStore>();
  const int size = GetParam().size;
  const int cycles = reduced() || size > 2 ? 10 : 50;
  on_threads(size, [&](int rank) {
    for (int i = 0; i < cycles; ++i) {
      auto group = std::make_optional(ProcessGroup::create(group_options(GetParam(), rank, store)));
      expect_usable(*group);
      if (i % 8 != 0) continue;
      for (int n = 0; n < 5; ++n) group->monitored_barrier(soon);
      // None passes: at least one rank gives up before the others come.
      if (rank == 0) {
        EXPECT_THROW(group->monitored_barrier({.timeout = 1ns}), Error);
      }
      group->barrier();
      if (rank != 0) {
        EXPECT_THROW(group->monitored_barrier(soon), Error);
      }
      auto part = group->split(rank % 2);
      if (i % 16 == 0) group.reset();  // A sub-group may outlive its parent.
      part->barrier();
    }
  });
  EXPECT_EQ(store->keys().size(), 1) << testing::PrintToString(store->keys());
}

TEST_P(KeysOfGroups, OfSubGroupsDoNotAddUpInTheirParent) {
  const auto store = std::make_shared<ListedStore>();
  std::size_t after_one = 0;
  RankBarrier together(GetParam().size);
  on_threads(GetParam().size, [&](int rank) {
    auto group = ProcessGroup::create(group_options(GetParam(), rank, store));
    for (int i = 0; i < 6; ++i) {
      { auto part = group.split(rank % 2); }
      together.wait();
      if (i == 0 && rank == 0) after_one = store->keys().size();
      // Groups on a device exchange the colors of a split through keys that their parent removes.
      if (i == 5 && rank == 0 && group.memory().device() == Device()) {
        EXPECT_EQ(store->keys().size(), after_one) << testing::PrintToString(store->keys());
      }
      together.wait();
    }
  });
}

TEST_P(KeysOfGroups, OfMonitoredBarriersDoNotAddUp) {
  const auto store = std::make_shared<ListedStore>();
  RankBarrier together(GetParam().size);
  std::size_t before = 0;
  on_threads(GetParam().size, [&](int rank) {
    auto group = ProcessGroup::create(group_options(GetParam(), rank, store));
    for (int i = 0; i < 20; ++i) {
      group.monitored_barrier(soon);
      together.wait();
      if (i == 4 && rank == 0) before = store->keys().size();
    }
    if (rank == 0) {
      EXPECT_LE(store->keys().size(), before + 2) << testing::PrintToString(store->keys());
    }
    together.wait();
  });
}

TEST_P(KeysOfGroups, OfListsOfMembersAreRemovedWithTheirGroups) {
  const auto store = std::make_shared<ListedStore>();
  std::vector<std::string> members;
  for (int i = 0; i < GetParam().size; ++i) members.push_back(ProcessGroup::new_member());
  const std::vector<std::string> reversed(members.rbegin(), members.rend());
  on_threads(GetParam().size, [&](int i) {
    auto options = group_options(GetParam(), 0, store);
    options.size = 1;
    for (int n = 0; n < 3; ++n)
      for (const auto& list : {members, reversed}) {
        auto group = ProcessGroup::reconfigure(options, members[index(i)], list);
        expect_usable(group);
      }
  });
  EXPECT_EQ(store->keys().size(), 2)
      << "one number for each list, not " << testing::PrintToString(store->keys());
}

TEST_P(KeysOfGroups, OfFailedAttemptsAreRemovedWhenTheirMembersMakeTheGroup) {
  const auto store = std::make_shared<ListedStore>();
  const int size = GetParam().size;
  std::vector<std::string> members;
  for (int i = 0; i < size; ++i) members.push_back(ProcessGroup::new_member());
  RankBarrier together(size);
  on_threads(size, [&](int i) {
    auto options = group_options(GetParam(), 0, store);
    options.size = 1;
    for (const int absent : {size - 1, 0}) {
      auto late = options;
      late.timeout = 100ms;
      if (i != absent) {
        EXPECT_THROW((void)ProcessGroup::reconfigure(late, members[index(i)], members), Error);
      }
      together.wait();
    }
    auto group = ProcessGroup::reconfigure(options, members[index(i)], members);
    expect_usable(group);
  });
  EXPECT_EQ(store->keys().size(), 1) << testing::PrintToString(store->keys());
}

TEST_P(KeysOfGroups, AreRemovedAfterSeveralRanksWereLost) {
  if (GetParam().size < 3) GTEST_SKIP() << "takes two ranks to lose";
  if (GetParam().backend.starts_with("hier:local"))
    GTEST_SKIP() << "the ranks of local share objects, which keep the store of rank 0";
  const auto store = std::make_shared<ListedStore>();
  RankBarrier together(GetParam().size);
  on_threads(GetParam().size, [&](int rank) {
    auto group = std::make_optional(ProcessGroup::create(group_options(GetParam(), rank, store)));
    for (int last = GetParam().size - 1; last > 0 && rank <= last; --last) {
      group->barrier();
      if (rank == last) break;  // The others go on without it.
      group = group->shrink(std::array{last});
    }
    if (rank > 0) together.wait();  // A process that has died does not remove its keys.
    if (rank > 0) return;
    group.reset();
    EXPECT_EQ(store->keys().size(), 1) << testing::PrintToString(store->keys());
    together.wait();
  });
}

}  // namespace
}  // namespace tutti::test
