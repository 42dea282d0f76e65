#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <tutti/backend/backend.hpp>

#include "conformance/cells.hpp"
#include "support/store_over.hpp"

// Groups of lists of members.

namespace tutti::test {
namespace {

using Handles = std::vector<std::string>;

class Reconfigure : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  /// The group of the members with these numbers, of which this one is `own`.
  ProcessGroup make(int own, std::initializer_list<int> list,
                    std::chrono::nanoseconds timeout = group_timeout) {
    Handles members;
    for (const int i : list) members.push_back(handle(i));
    return make(own, members, timeout);
  }
  ProcessGroup make(int own, const Handles& members,
                    std::chrono::nanoseconds timeout = group_timeout) {
    auto options = group_options(world(), 0, store_);
    options.size = 1;
    options.timeout = timeout;
    return ProcessGroup::reconfigure(options, handle(own), members);
  }
  const std::string& handle(int i) const { return handles_[index(i)]; }
  int count() const { return world().size; }

  std::shared_ptr<Store> store_ = make_memory_store();
  Handles handles_{ProcessGroup::new_member(), ProcessGroup::new_member(),
                   ProcessGroup::new_member(), ProcessGroup::new_member()};
};
INSTANTIATE_TEST_SUITE_P(Worlds, Reconfigure, testing::ValuesIn(worlds({4})), CaseName());

/// Expects that the ranks of a group are the members with these numbers.
void expect_members(ProcessGroup& group, int own, const std::vector<std::int32_t>& want) {
  const Buffer in(group, number(own));
  const Buffer out(group, DType::i32, {group.size()});
  group.all_gather(in, out);
  EXPECT_TRUE(same(out.read(), array_of<std::int32_t>(want)));
}

TEST_P(Reconfigure, GrowsByNewMembersInTheOrderOfTheList) {
  on_threads(4, [&](int me) {
    std::optional<ProcessGroup> old;
    if (me < 2) {
      old = make(me, {0, 1});
      expect_members(*old, me, {0, 1});
    }
    auto group = make(me, {2, 0, 3, 1});
    EXPECT_EQ(group.size(), 4);
    expect_members(group, me, {2, 0, 3, 1});
    if (me == 0) old.reset();
    expect_members(group, me, {2, 0, 3, 1});
  });
}

TEST_P(Reconfigure, ReplacesAMemberOfABrokenGroup) {
  on_threads(4, [&](int me) {
    if (me != 3) {
      auto old = make(me, {0, 1, 2});
      expect_members(old, me, {0, 1, 2});
      if (me == 2) return;
      expect_error({Errc::peer_lost, Errc::aborted, Errc::timeout}, {}, [&] {
        while (true) old.barrier({.timeout = 5s});
      });
      auto group = make(me, {0, 1, 3});
      expect_members(group, me, {0, 1, 3});
      return;
    }
    auto group = make(me, {0, 1, 3});
    expect_members(group, me, {0, 1, 3});
  });
}

TEST_P(Reconfigure, TheSameListMakesAnotherGroup) {
  on_threads(3, [&](int me) {
    auto first = make(me, {0, 1, 2});
    auto second = make(me, {0, 1, 2});
    expect_members(first, me, {0, 1, 2});
    expect_members(second, me, {0, 1, 2});
    second.abort("the test breaks it");
    auto third = make(me, {0, 1, 2});
    expect_members(third, me, {0, 1, 2});
  });
}

// Fast members are some lists ahead of slow ones, which is no disagreement.
TEST_P(Reconfigure, MembersMayMeetInOneListAfterAnother) {
  on_threads(4, [&](int me) {
    for (int round = 0; round < 5; ++round) {
      if (me < 2) {
        auto pair = make(me, {0, 1});
        expect_members(pair, me, {0, 1});
      } else {
        auto pair = make(me, {3, 2});
        expect_members(pair, me, {3, 2});
      }
      auto all = make(me, {3, 1, 2, 0});
      expect_members(all, me, {3, 1, 2, 0});
      if (me != 1) {
        auto three = make(me, {0, 2, 3});
        if (round % 2 == 0) expect_members(three, me, {0, 2, 3});
      }
    }
  });
}

/// A store that counts how often a key is read.
class WatchedStore final : public StoreOver {
 public:
  WatchedStore(std::shared_ptr<Store> base, std::string key)
      : StoreOver(std::move(base)), key_(std::move(key)) {}
  /// Blocks until the key has been read `count` times more.
  void await_reads(int count) {
    std::unique_lock lock(mutex_);
    const int wanted = reads_ + count;
    if (!read_.wait_for(lock, group_timeout, [&] { return reads_ >= wanted; }))
      throw std::runtime_error("the key was not read");
  }

  Bytes get(std::string_view key, Deadline limit) override {
    if (key == key_) {
      const std::lock_guard lock(mutex_);
      ++reads_;
      read_.notify_all();
    }
    return StoreOver::get(key, limit);
  }
  bool in_process() const override { return true; }

 private:
  std::string key_;
  std::mutex mutex_;
  std::condition_variable read_;
  int reads_ = 0;
};

TEST_P(Reconfigure, AMemberThatStillMakesAnEarlierGroupIsNoDisagreement) {
  const auto watched = std::make_shared<WatchedStore>(store_, "world/members/" + handle(0));
  store_ = watched;
  const Handles earlier{handle(0), handle(1)};
  const Handles later{handle(1), handle(0)};
  on_threads(2, [&](int me) {
    auto options = group_options(world(), 0, store_);
    options.size = 1;
    auto slow = options;
    if (me == 0)
      slow.decorate = [&](std::unique_ptr<Backend> backend) {
        watched->await_reads(4);  // The other one waits in the later list.
        return backend;
      };
    auto first = ProcessGroup::reconfigure(slow, handle(me), earlier);
    auto second = ProcessGroup::reconfigure(options, handle(me), later);
    expect_members(first, me, {0, 1});
    expect_members(second, me, {1, 0});
  });
}

TEST_P(Reconfigure, AMemberThatDoesNotComeIsNamedAndMayComeToTheNextAttempt) {
  RankBarrier first_attempt(4);
  on_threads(4, [&](int me) {
    if (me != 2)
      expect_error(Errc::timeout, {"rank", handle(2)}, [&] {
        (void)make(me, {0, 1, 2, 3}, 300ms);
      });
    first_attempt.wait();
    auto group = make(me, {0, 1, 2, 3});
    expect_members(group, me, {0, 1, 2, 3});
  });
}

TEST_P(Reconfigure, AnotherListOfOneMemberIsAMismatchOnAllAtOnce) {
  const Handles right{handle(0), handle(1), handle(2), handle(3)};
  const Handles order{handle(1), handle(0), handle(2), handle(3)};
  const Handles fewer{handle(0), handle(1), handle(3)};
  auto more = right;
  more.push_back(ProcessGroup::new_member());
  for (const auto& wrong : {order, fewer, more})
    for (const int odd : {0, 3}) {
      RankBarrier together(4);
      on_threads(4, [&](int me) {
        if (me == odd)  // Comes last: the others wait.
          for (int i = 0; i < 4; ++i)
            if (i != odd)
              (void)store_->get("world/members/" + handle(i), Deadline::after(group_timeout));
        const auto start = std::chrono::steady_clock::now();
        expect_error(Errc::mismatch, {handle(odd), "every member has to pass the same list"},
                     [&] { (void)make(me, me == odd ? wrong : right, 1min); });
        EXPECT_LT(std::chrono::steady_clock::now() - start, patience() * 2s);
        together.wait();
        auto group = make(me, right);
        expect_members(group, me, {0, 1, 2, 3});
        together.wait();
      });
    }
}

TEST_P(Reconfigure, AnotherListIsAMismatchWhileBothWaitForAThirdMember) {
  on_threads(2, [&](int me) {
    const auto start = std::chrono::steady_clock::now();
    expect_error(Errc::mismatch, {"every member has to pass the same list"}, [&] {
      (void)make(me,
                 me == 0 ? Handles{handle(2), handle(0), handle(1)}
                         : Handles{handle(2), handle(1), handle(0)},
                 1min);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, patience() * 2s);
  });
}

TEST_P(Reconfigure, GrowsAGroupThatHasShrunk) {
  RankBarrier left(3);
  on_threads(4, [&](int me) {
    std::optional<ProcessGroup> old;
    if (me < 3) {
      {
        auto first = make(me, {2, 1, 0});
        expect_members(first, me, {2, 1, 0});
        first.abort("the test breaks it");
        left.wait();
        if (me == 2) return;
        old = first.shrink(std::array{0});
      }
      expect_members(*old, me, {1, 0});
    }
    auto group = make(me, {0, 1, 3});
    expect_members(group, me, {0, 1, 3});
  });
}

TEST_P(Reconfigure, RefusesAWrongListBeforeItUsesTheStore) {
  store_ = nullptr;
  expect_error(Errc::invalid_argument, {"is empty"}, [&] { (void)make(0, Handles()); });
  expect_error(Errc::invalid_argument, {"ranks 1 and 2", "both", handle(1)}, [&] {
    (void)make(0, {0, 1, 1});
  });
  expect_error(Errc::invalid_argument, {handle(2), "not in the list of 2 members"}, [&] {
    (void)make(2, {0, 1});
  });
  expect_error(Errc::invalid_argument, {"handle of rank 1", "0 bytes"}, [&] {
    (void)make(0, Handles{handle(0), ""});
  });
  auto options = group_options(world(), 1, store_);
  expect_error(Errc::invalid_argument, {"rank is 1 and size is 4"},
               [&] { (void)ProcessGroup::reconfigure(options, handle(1), handles_); });
  expect_error(Errc::invalid_argument, {"store"}, [&] { (void)make(0, {0, 1}); });
  auto alone = make(0, {0});
  expect_members(alone, 0, {0});
}

TEST(Members, HaveHandlesOfTheirOwn) {
  std::set<std::string> handles;
  for (int i = 0; i < 100; ++i) {
    const auto handle = ProcessGroup::new_member();
    EXPECT_LE(handle.size(), 200U);
    EXPECT_TRUE(std::ranges::all_of(handle, [](char c) { return c > ' ' && c <= '~'; })) << handle;
    handles.insert(handle);
  }
  EXPECT_EQ(handles.size(), 100U);
}

}  // namespace
}  // namespace tutti::test
