#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/sanitizers.hpp"

// A process with groups that forks. The child has a single thread and shares no memory with the
// parent: inherited groups cannot work, and must report it instead of waiting.

namespace tutti::test {
namespace {

GroupOptions alone(bool checked) {
  return {.backend = "local",
          .timeout = 60s,
          .checked = checked,
          .logger = [](LogLevel, std::string_view) {}};
}

/// The code of the error that `call` throws, or "nothing".
std::string code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code()));
  }
  return "nothing";
}

/// In both modes; with a worker thread, which a child does not have.
class Fork : public testing::TestWithParam<bool> {
 protected:
  Fork() { group->barrier_async().wait(); }
  std::optional<ProcessGroup> group = ProcessGroup::create(alone(GetParam()));
  std::vector<float> data = std::vector<float>(4, 1.0F);
  std::vector<float> out = std::vector<float>(4);
};
INSTANTIATE_TEST_SUITE_P(Modes, Fork, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "checked" : "normal"; });

TEST_P(Fork, EveryVerbOfAChildIsRefusedByName) {
  const auto end = in_child([&] {
    const std::vector<std::function<void()>> calls{
        [&] { group->all_reduce(data); },
        [&] { group->all_reduce(data, out); },
        [&] { group->broadcast(data, 0); },
        [&] { group->reduce(data, out, 0); },
        [&] { group->all_gather(data, out); },
        [&] { group->reduce_scatter(data, out); },
        [&] { group->all_to_all(data, out); },
        [&] { group->gather(data, out, 0); },
        [&] { group->scatter(data, out, 0); },
        [&] { group->scan(data, out); },
        [&] { group->exclusive_scan(data, out); },
        [&] { group->barrier(); },
        [&] { group->send(data, 0); },
        [&] { group->recv(data, 0); },
        [&] { group->all_reduce_async(data).wait(); },
        [&] { group->barrier_async().wait(); },
        [&] { group->send_async(data, 0).wait(); },
        [&] { group->recv_async(data, 0).wait(); },
        [&] { (void)group->split(0); },
        [&] { (void)group->subset(std::vector{0}); },
    };
    std::string codes;
    for (const auto& call : calls) codes += code_of(call) + "\n";
    return codes;
  });
  EXPECT_TRUE(end.ended);
  std::string want;
  for (int i = 0; i < 20; ++i) want += "forked\n";
  EXPECT_EQ(end.output, want);
}

TEST_P(Fork, TheErrorNamesTheGroupAndWhatToDo) {
  const auto end = in_child([&]() -> std::string {
    try {
      group->barrier();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  });
  for (const auto* text : {"forked", "'world'", "fork()", "new one"})
    EXPECT_NE(end.output.find(text), std::string::npos) << end.output;
}

TEST_P(Fork, AChildMayMakeAGroupOfItsOwn) {
  if (thread_sanitizer) GTEST_SKIP() << "ThreadSanitizer lets no forked child start a thread";
  if (is_emulated()) GTEST_SKIP() << "qemu lets no forked child start a thread";
  const auto end = in_child([&]() -> std::string {
    auto own = ProcessGroup::create(alone(GetParam()));
    own.all_reduce(data);
    own.barrier_async().wait();
    Work send = own.send_async(data, 0);
    own.recv(out, 0);
    send.wait();
    return code_of([&] { group->barrier(); }) + ", " + std::to_string(out[0]);
  });
  EXPECT_TRUE(end.ended);
  EXPECT_EQ(end.output, "forked, " + std::to_string(1.0F)) << "the inherited one stays refused";
}

TEST_P(Fork, AGroupThatAChildMadeIsRefusedInItsOwnChild) {
  const auto end = in_child([&]() -> std::string {
    auto own = ProcessGroup::create(alone(GetParam()));
    const auto inner = in_child([&] { return code_of([&] { own.barrier(); }); });
    return inner.output + ", " + code_of([&] { own.barrier(); });
  });
  EXPECT_EQ(end.output, "forked, nothing");
}

TEST_P(Fork, TheParentsGroupGoesOnWorking) {
  EXPECT_TRUE(in_child([&] { return code_of([&] { group->barrier(); }); }).ended);
  group->all_reduce(data);
  group->barrier_async().wait();
  EXPECT_EQ(data, std::vector<float>(4, 1.0F));
}

TEST_P(Fork, AChildMayDestroyWhatItInherited) {
  const auto end = in_child([&] {
    group.reset();
    return "destroyed";
  });
  EXPECT_TRUE(end.ended);
  EXPECT_EQ(end.output, "destroyed");
  group->barrier();
}

TEST_P(Fork, AbortOfAChildDoesNothing) {
  const auto end = in_child([&] {
    group->abort("the child says so");
    return "survived";
  });
  EXPECT_EQ(end.output, "survived");
  group->barrier();
}

TEST_P(Fork, TheTraceMayBeReadInAChild) {
  const auto end = in_child([&] { return std::to_string(group->trace().size()); });
  EXPECT_EQ(end.output, "1");
}

TEST_P(Fork, ACoalesceOfAChildIsRefused) {
  const auto end = in_child([&] {
    return code_of([&] {
      Coalesce together(*group);
      (void)group->barrier_async();
      together.launch().wait();
    });
  });
  EXPECT_TRUE(end.ended);
  EXPECT_EQ(end.output, "forked");
}

// The child can never finish it, and its deadline is a minute away.
TEST_P(Fork, APendingWorkOfAChildThrowsInsteadOfWaiting) {
  Work pending = group->recv_async(out, 0);
  const auto end = in_child([&] { return code_of([&] { pending.wait(); }); });
  EXPECT_TRUE(end.ended) << "it waits for a thread that is not there";
  EXPECT_EQ(end.output, "forked");
  group->send(data, 0);
  pending.wait();
  EXPECT_EQ(out, data);
}

TEST_P(Fork, APendingWorkMayBeDestroyedInAChild) {
  Work pending = group->recv_async(out, 0);
  const auto end = in_child([&] {
    pending = Work();
    return "destroyed";
  });
  EXPECT_TRUE(end.ended) << "it waits for a thread that is not there";
  group->send(data, 0);
  pending.wait();
}

// A child has no worker, so its callbacks run on the calling thread; the parent's run in the
// parent.
TEST_P(Fork, CallbacksOfAChildGetTheForkAtOnce) {
  Work pending = group->recv_async(out, 0);
  std::atomic<int> of_parent = 0;
  pending.on_done([&](const Error*) { ++of_parent; });
  const auto end = in_child([&] {
    std::string output;
    pending.on_done([&](const Error* error) {
      output = error == nullptr ? "null" : std::string(name_of(error->code()));
    });
    const auto kept = std::make_shared<int>(1);
    std::move(pending).detach(kept);
    return output + " " + std::to_string(of_parent) + " " + std::to_string(kept.use_count());
  });
  EXPECT_TRUE(end.ended) << "it waits for a thread that is not there";
  EXPECT_EQ(end.output, "forked 0 1");
  group->send(data, 0);
  pending.wait();
  EXPECT_EQ(of_parent, 1);
}

// A collective of two ranks, of which one has not entered yet.
TEST_P(Fork, APendingCollectiveOfAChildThrowsInsteadOfWaiting) {
  const auto store = make_memory_store();
  PerRank<std::optional<ProcessGroup>> groups(2);
  on_threads(2, [&](int rank) {
    GroupOptions options = alone(GetParam());
    options.store = store;
    options.rank = rank;
    options.size = 2;
    groups[rank].emplace(ProcessGroup::create(options));
  });
  Work pending = groups[0]->all_reduce_async(data);
  const auto end = in_child([&] {
    auto code = code_of([&] { pending.wait(); });
    groups[0].reset();
    groups[1].reset();
    return code;
  });
  EXPECT_TRUE(end.ended) << "it waits for a thread that is not there";
  EXPECT_EQ(end.output, "forked");
  groups[1]->all_reduce(out);
  pending.wait();
  EXPECT_EQ(data, out);
}

}  // namespace
}  // namespace tutti::test
