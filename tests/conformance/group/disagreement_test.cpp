#include <latch>
#include <map>
#include <string>
#include <thread>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"
#include "support/resources.hpp"
#include "support/sanitizers.hpp"

// Ranks that disagree in normal mode, with a timeout of minutes: every rank has an error that names
// both sides by the end of its next call, within 2 s, and no rank that got no error has wrong data.
// A group that stays usable is tested by mismatch_test.cpp, where backends compare before data
// moves.

namespace tutti::test {
namespace {

/// The calls of rank 1 and those of the other ranks.
using Calls = std::function<void(ProcessGroup& group)>;
struct Disagreement {
  std::string name;
  Calls odd;
  Calls others;
  /// Of one rank that differs alone, in this or the next call. Empty: any.
  std::vector<std::string> texts{};
};

Buffer array(ProcessGroup& group, std::int64_t count = 4, DType dtype = DType::f32) {
  return Buffer(group, dtype, {count});
}
Calls all_reduce(std::int64_t count = 4, DType dtype = DType::f32, ReduceOp op = ReduceOp::sum,
                 CallOptions options = {}) {
  return [=](ProcessGroup& group) {
    const auto data = array(group, count, dtype);
    group.all_reduce(data, op, options);
  };
}
Calls broadcast(int root, std::int64_t count = 4, DType dtype = DType::f32) {
  return [=](ProcessGroup& group) {
    const auto data = array(group, count, dtype);
    group.broadcast(data, root);
  };
}
Calls reduce(int root) {
  return [=](ProcessGroup& group) {
    const auto in = array(group);
    const auto out = array(group);
    group.reduce(in, out, root);
  };
}
Calls gather(int root) {
  return [=](ProcessGroup& group) {
    const auto in = array(group);
    const auto out = array(group, std::int64_t{4} * group.size());
    group.gather(in, out, root);
  };
}
Calls scatter(int root) {
  return [=](ProcessGroup& group) {
    const auto in = array(group, std::int64_t{4} * group.size());
    const auto out = array(group);
    group.scatter(in, out, root);
  };
}
Calls all_gather() {
  return [](ProcessGroup& group) {
    const auto in = array(group);
    const auto out = array(group, std::int64_t{4} * group.size());
    group.all_gather(in, out);
  };
}
Calls reduce_scatter() {
  return [](ProcessGroup& group) {
    const auto in = array(group, std::int64_t{4} * group.size());
    const auto out = array(group);
    group.reduce_scatter(in, out);
  };
}
Calls all_to_all() {
  return [](ProcessGroup& group) {
    const auto in = array(group, std::int64_t{4} * group.size());
    const auto out = array(group, std::int64_t{4} * group.size());
    group.all_to_all(in, out);
  };
}
Calls scan() {
  return [](ProcessGroup& group) {
    const auto in = array(group);
    const auto out = array(group);
    group.scan(in, out);
  };
}
Calls barrier() {
  return [](ProcessGroup& group) { group.barrier(); };
}
Calls split() {
  return [](ProcessGroup& group) { (void)group.split(0); };
}
Calls coalesced(int calls) {
  return [=](ProcessGroup& group) {
    std::vector<Buffer> all;
    for (int i = 0; i < calls; ++i) all.push_back(array(group));
    Coalesce together(group);
    for (const auto& data : all) (void)group.all_reduce_async(data);
    together.launch().wait();
  };
}
Calls nothing() {
  return [](ProcessGroup&) {};
}
Calls then(const Calls& first, const Calls& second) {
  return [=](ProcessGroup& group) {
    first(group);
    second(group);
  };
}

struct NamedCalls {
  std::string name;
  Calls calls;
};

std::vector<Disagreement> disagreements() {
  const std::vector<NamedCalls> operations{{"all_reduce", all_reduce()},
                                           {"broadcast", broadcast(0)},
                                           {"reduce", reduce(0)},
                                           {"gather", gather(0)},
                                           {"scatter", scatter(0)},
                                           {"all_gather", all_gather()},
                                           {"reduce_scatter", reduce_scatter()},
                                           {"all_to_all", all_to_all()},
                                           {"scan", scan()},
                                           {"barrier", barrier()}};
  std::vector<Disagreement> all;
  for (std::size_t i = 0; i < operations.size(); ++i)
    for (std::size_t step = 1; step < operations.size(); ++step) {
      if (!everything() && step != 1 && step != 4) continue;
      const auto& odd = operations[i];
      const auto& others = operations[(i + step) % operations.size()];
      all.push_back(
          {odd.name + "_against_" + others.name, odd.calls, others.calls, {odd.name, others.name}});
    }
  const auto add = [&](const char* name, const Calls& odd, const Calls& others,
                       std::vector<std::string> texts = {}) {
    all.push_back({name, odd, others, std::move(texts)});
  };
  add("count", all_reduce(3), all_reduce(4), {"12 B", "16 B"});
  add("count_of_many", all_reduce(300'001), all_reduce(300'000));
  add("no_elements", all_reduce(0), all_reduce(4));
  add("count_of_broadcast", broadcast(0, 8), broadcast(0));
  add("dtype", all_reduce(4, DType::i32), all_reduce(), {"i32", "f32"});
  add("dtype_of_other_size", all_reduce(2, DType::f64), all_reduce(), {"f64", "f32"});
  add("dtype_of_broadcast", broadcast(0, 4, DType::u32), broadcast(0), {"u32", "f32"});
  add("reduce_op", all_reduce(4, DType::f32, ReduceOp::max), all_reduce(), {"max", "sum"});
  add("order_fixed", all_reduce(4, DType::f32, ReduceOp::sum, {.order_fixed = true}), all_reduce());
  add("reproducible", all_reduce(4, DType::f32, ReduceOp::sum, {.reproducible = true}),
      all_reduce());
  add("name", all_reduce(4, DType::f32, ReduceOp::sum, {.name = "a"}), all_reduce());
  add("root_of_broadcast", broadcast(1), broadcast(0), {"root 1", "root 0"});
  add("root_of_reduce", reduce(1), reduce(0), {"root 1", "root 0"});
  add("root_of_gather", gather(1), gather(0), {"root 1", "root 0"});
  add("root_of_scatter", scatter(1), scatter(0), {"root 1", "root 0"});
  add("one_call_more", then(all_reduce(), all_reduce()), all_reduce(), {"all_reduce", "barrier"});
  add("one_call_fewer", nothing(), all_reduce(), {"all_reduce", "barrier"});
  add("order", then(all_reduce(4), all_reduce(8)), then(all_reduce(8), all_reduce(4)));
  add("split_against_all_reduce", split(), all_reduce());
  add("coalesced", coalesced(2), coalesced(3));
  return all;
}

struct Case {
  World world;
  Disagreement disagreement;
};
std::string to_string(const Case& c) {
  return to_string(c.world) + "_" + c.disagreement.name;
}
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << to_string(c);
}
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const World& world : worlds({3}))
    if (!world.checked)
      for (const auto& disagreement : disagreements()) all.push_back({world, disagreement});
  return all;
}

/// A disagreement leaves no thread and no descriptor; the first one of a world may set up some.
class Disagreements : public testing::TestWithParam<Case> {
 protected:
  void TearDown() override {
    // It starts a program that finds names for the reports that it suppresses, behind two pipes.
    if (thread_sanitizer) return;
    const auto [before, is_first] = before_.try_emplace(to_string(GetParam().world));
    if (is_first) {
      before->second = Resources::settled().but_mappings();
      return;
    }
    const auto after = Resources::await(before->second, 2s);
    EXPECT_TRUE(after.fit(before->second)) << after << "; before " << before->second;
  }

 private:
  static inline std::map<std::string, Resources> before_;  // By world.
};
INSTANTIATE_TEST_SUITE_P(Cases, Disagreements, testing::ValuesIn(cases()), CaseName());

TEST_P(Disagreements, AreAnErrorOnEveryRankByItsNextCall) {
  const World& world = GetParam().world;
  const Disagreement& disagreement = GetParam().disagreement;
  PerRank<std::string> errors(world.size);
  PerRank<std::chrono::nanoseconds> times(world.size);
  RankBarrier made(world.size);
  const auto run = [&](ProcessGroup& group) {
    const auto& calls = group.rank() == 1 ? disagreement.odd : disagreement.others;
    made.wait();
    auto start = std::chrono::steady_clock::now();
    for (const auto& call : {calls, barrier(), barrier()}) {
      try {
        start = std::chrono::steady_clock::now();
        call(group);
      } catch (const Error& error) {
        errors[group.rank()] = error.what();
        break;
      }
    }
    times[group.rank()] = std::chrono::steady_clock::now() - start;
    made.wait();  // A rank that leaves would be an error of its own.
  };
  on_fresh_ranks(world, run, {.timeout = 5min});
  for (int rank = 0; rank < world.size; ++rank) {
    const auto& text = errors[rank];
    EXPECT_NE(text.find("mismatch"), std::string::npos)
        << "rank " << rank << ": " << (text.empty() ? "no error" : text);
    for (const auto& side : disagreement.texts)
      EXPECT_TRUE(text.find(side) != std::string::npos || text.find(" [") != std::string::npos)
          << "no '" << side << "' in: " << text;
    EXPECT_NE(text.find("rank"), std::string::npos) << text;
    EXPECT_LT(times[rank], patience() * 2s) << "rank " << rank;
  }
}

// Messages.

std::vector<World> worlds_of_messages() {
  auto all = worlds({3});
  std::erase_if(all, [](const World& world) { return world.checked; });
  return all;
}
class DisagreementsOfMessages : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DisagreementsOfMessages, testing::ValuesIn(worlds_of_messages()),
                         CaseName());

TEST_P(DisagreementsOfMessages, AreAnErrorOnTheReceiverAndOnTheSenderByItsNextCall) {
  struct Side {
    DType dtype;
    std::int64_t count;
  };
  for (const auto& [sent, received] : {std::pair<Side, Side>{{DType::f32, 5}, {DType::f32, 4}},
                                       {{DType::f32, 4}, {DType::f32, 5}},
                                       {{DType::i32, 4}, {DType::f32, 4}},
                                       {{DType::f32, 400'000}, {DType::f32, 400'001}}}) {
    RankBarrier tested(GetParam().size);
    const auto run = [&, &sent = sent, &received = received](ProcessGroup& group) {
      tested.wait();
      auto start = std::chrono::steady_clock::now();
      const auto expect_in_time = [&] {
        EXPECT_LT(std::chrono::steady_clock::now() - std::exchange(start, {}), patience() * 2s);
      };
      const std::vector<std::string> texts{std::string(name_of(sent.dtype)),
                                           std::string(name_of(received.dtype)), "rank 0: send",
                                           "rank 1: recv"};
      if (group.rank() == 1)
        expect_error(Errc::mismatch, texts,
                     [&] { group.recv(array(group, received.count, received.dtype), 0); });
      if (group.rank() == 0) {
        bool has_ended = false;  // A small message, which the transport has taken.
        try {
          group.send(array(group, sent.count, sent.dtype), 1);
          has_ended = true;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
        }
        if (!has_ended) expect_in_time();
        tested.wait();
        start = std::chrono::steady_clock::now();
        if (has_ended)
          expect_error({Errc::mismatch, Errc::aborted}, texts, [&] { group.barrier(); });
        expect_in_time();
      } else {
        expect_in_time();
        tested.wait();
      }
      tested.wait();
    };
    on_fresh_ranks(GetParam(), run, {.timeout = 5min});
  }
}

// Peers look at each other's questions twice a second, also after the answer.
TEST_P(DisagreementsOfMessages, LeaveTheGroupUsable) {
  const auto run = [](ProcessGroup& group) {
    if (group.rank() == 0)
      expect_error(Errc::mismatch, {}, [&] { group.send(array(group, 400'000), 1); });
    if (group.rank() == 1)
      expect_error(Errc::mismatch, {}, [&] { group.recv(array(group, 400'001), 0); });
    std::this_thread::sleep_for(1200ms);
    group.barrier();
  };
  on_fresh_ranks(GetParam(), run, {.timeout = 5min});
}

TEST_P(DisagreementsOfMessages, AreFoundWhileOtherRanksWaitForTheSameRank) {
  std::latch found(1);
  const auto run = [&](ProcessGroup& group) {
    // The group is usable afterwards if the send has not ended before.
    const auto may_differ = [](const auto& call) {
      try {
        call();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
      }
    };
    if (group.rank() == 1) {
      const auto start = std::chrono::steady_clock::now();
      expect_error(Errc::mismatch, {"rank 0: send", "rank 1: recv"},
                   [&] { group.recv(array(group, 4), 0); });
      EXPECT_LT(std::chrono::steady_clock::now() - start, patience() * 2s);
      found.count_down();
    } else if (group.rank() == 0) {
      may_differ([&] { group.send(array(group, 5), 1); });
      found.wait();
      for (int r = 2; r < group.size(); ++r) may_differ([&] { group.send(array(group, 4), r); });
    } else {
      may_differ([&] { group.recv(array(group, 4), 0); });
    }
  };
  on_fresh_ranks(GetParam(), run, {.timeout = 5min});
}

// Making a group.

class DisagreementsOfMembers : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DisagreementsOfMembers, testing::ValuesIn(worlds_of_messages()),
                         CaseName());

/// Makes a group with these options of its ranks, which all throw a mismatch at once.
void expect_no_group(const World& world, const std::vector<std::string>& texts,
                     const std::function<void(GroupOptions& options, int thread)>& adjust,
                     const std::vector<int>& order) {
  const auto store = make_memory_store();
  std::atomic<std::size_t> turn{0};
  on_threads(static_cast<int>(order.size()), [&](int thread) {
    auto options = group_options(world, thread % world.size, store);
    options.timeout = 5min;
    adjust(options, thread);
    // The order in which they join.
    while (order[turn] != thread) std::this_thread::yield();
    std::thread next([&] {
      std::this_thread::sleep_for(30ms);
      if (turn + 1 < order.size()) ++turn;
    });
    const auto start = std::chrono::steady_clock::now();
    const Error error =
        expect_error(Errc::mismatch, texts, [&] { (void)ProcessGroup::create(options); });
    EXPECT_NE(std::string(error.what()).find("process " + std::to_string(::getpid()) + " on "),
              std::string::npos)
        << error.what();
    EXPECT_LT(std::chrono::steady_clock::now() - start, patience() * 2s);
    next.join();
  });
}

TEST_P(DisagreementsOfMembers, OtherSizesAreAnErrorOnAllRanksAtOnce) {
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}})
    expect_no_group(
        GetParam(), {"size 3", "size 4"},
        [](GroupOptions& options, int thread) {
          if (thread == 1) options.size = 4;
        },
        order);
}

TEST_P(DisagreementsOfMembers, TwoRanksOfOneNumberAreAnErrorOnAllRanksAtOnce) {
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}})
    expect_no_group(
        GetParam(), {"both have rank 1"},
        [](GroupOptions& options, int thread) {
          if (thread == 2) options.rank = 1;
        },
        order);
}

TEST_P(DisagreementsOfMembers, OtherModesAreAnErrorOnAllRanksAtOnce) {
  expect_no_group(GetParam(), {"checked mode on", "checked mode off"},
                  [](GroupOptions& options, int thread) { options.checked = thread == 2; },
                  {0, 1, 2});
}

TEST_P(DisagreementsOfMembers, OtherTimesOfDeathAreAnErrorOnAllRanksAtOnce) {
  expect_no_group(GetParam(), {"dead_after 2.5 s", "dead_after 10 s", "TUTTI_DEAD_AFTER"},
                  [](GroupOptions& options, int thread) {
                    if (thread == 2) options.dead_after = std::chrono::milliseconds(2500);
                  },
                  {0, 1, 2});
}

}  // namespace
}  // namespace tutti::test
