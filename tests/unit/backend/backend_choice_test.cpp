#include "backend/backend_choice.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/temporary_directory.hpp"
#include "values/current_error.hpp"

namespace tutti::internal {
namespace {

using test::expect_error;

/// The facts of a rank that can use all backends of hosts, with a fast network or without.
std::string facts(const std::string& host, bool beyond_tcp = false, const std::string& args = {}) {
  return host + "\n" + args + "\ngloo\n\ntcp\n\nshm\n\nucx\n\nucx beyond TCP\n" +
         (beyond_tcp ? "" : "TCP alone") + "\nhier\n";
}

/// The facts without the backend `name`, or with a reason why it cannot be used.
std::string without(std::string text, const std::string& name, const std::string& why = {}) {
  const auto at = text.find("\n" + name + "\n");
  EXPECT_NE(at, std::string::npos) << name;
  return why.empty() ? text.erase(at, name.size() + 2) : text.insert(at + name.size() + 2, why);
}

std::string decided(const std::vector<std::string>& ranks) {
  const auto found = decide_together(ranks);
  return std::string(found.backend) + (found.args.empty() ? "" : ":" + found.args);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DecideTogether, FollowsTheHostsOfTheRanks) {
  const auto a = facts("a");
  const auto b = facts("b");
  EXPECT_EQ(decided({a}), "shm");
  EXPECT_EQ(decided({a, a}), "shm");
  EXPECT_EQ(decided({a, b}), "tcp");
  EXPECT_EQ(decided({a, b, facts("c")}), "tcp");
  EXPECT_EQ(decided({a, a, b, b}), "hier:shm+tcp");
  EXPECT_EQ(decided({a, b, a, b}), "hier:shm+tcp");
  EXPECT_EQ(decided({a, b, b}), "hier:shm+tcp") << "one host has one rank";
}

TEST(DecideTogether, TakesUcxBetweenHostsIfEveryRankHasAFastNetwork) {
  const auto a = facts("a", true);
  const auto b = facts("b", true);
  EXPECT_EQ(decided({a, a, b}), "hier:shm+ucx");
  EXPECT_EQ(decided({a, b}), "ucx");
  EXPECT_EQ(decided({a, facts("b")}), "tcp");
  EXPECT_EQ(decided({a, a, facts("b")}), "hier:shm+tcp");
  EXPECT_EQ(decided({a, a, without(b, "ucx", "libucp.so.0 is not there")}), "hier:shm+tcp");
  const auto reason = decide_together(std::vector{a, a, facts("b")}).reason;
  EXPECT_TRUE(has(reason, "not local")) << reason;
  EXPECT_TRUE(has(reason, "hier:shm+ucx: rank 2: TCP alone")) << reason;
}

TEST(DecideTogether, LeavesOutWhatOneRankCannotUse) {
  const auto a = facts("a");
  const auto b = facts("b");
  EXPECT_EQ(decided({a, without(a, "shm")}), "tcp");
  EXPECT_EQ(decided({without(a, "shm", "no pidfd"), a}), "tcp");
  EXPECT_EQ(decided({a, a, b, without(b, "hier")}), "tcp");
  EXPECT_EQ(decided({a, a, b, without(b, "shm")}), "tcp");
  EXPECT_EQ(decided({without(a, "tcp"), b}), "gloo");
  EXPECT_EQ(decided({a, a, without(b, "tcp")}), "hier:shm+gloo");
  const auto missing = decide_together(std::vector{a, without(a, "shm")}).reason;
  EXPECT_TRUE(has(missing, "processes of one host")) << missing;
  EXPECT_TRUE(has(missing, "shm: rank 1 has no shm")) << missing;
  const auto unusable = decide_together(std::vector{without(a, "shm", "no pidfd"), a}).reason;
  EXPECT_TRUE(has(unusable, "shm: rank 0: no pidfd")) << unusable;
  const auto none = without(without(without(without(a, "shm"), "tcp"), "gloo"), "ucx");
  expect_error(Errc::unsupported, {"processes of one host", "rank 1 has no tcp"}, [&] {
    (void)decide_together(std::vector{a, none});
  });
}

TEST(DecideTogether, AnArgumentOfOneRankNamesTheInterface) {
  EXPECT_EQ(decided({facts("a"), facts("a", false, "=lo")}), "tcp");
  EXPECT_EQ(decided({facts("a"), facts("a"), facts("b", true, "=lo")}), "tcp");
}

TEST(DecideTogether, CountsTheRanksThatShareMemory) {
  const auto shm = std::ranges::find(backends(), "shm", &BackendEntry::name);
  if (shm == backends().end()) GTEST_SKIP() << "the backend shm is not in this build";
  ASSERT_GT(shm->most_ranks, 0);
  std::vector<std::string> ranks(static_cast<std::size_t>(shm->most_ranks), facts("a"));
  EXPECT_EQ(decided(ranks), "shm");
  ranks.push_back(facts("a"));
  EXPECT_EQ(decided(ranks), "tcp");
  ranks.back() = facts("b");
  EXPECT_EQ(decided(ranks), "hier:shm+tcp");
}

TEST(BackendFacts, NameEveryBackendBetweenProcessesOfThisBuild) {
  const auto text = backend_facts("a", "=lo");
  EXPECT_EQ(text.substr(0, 6), "a\n=lo\n") << text;
  for (const auto& entry : backends())
    EXPECT_EQ(has(text, "\n" + std::string(entry.name) + "\n"),
              !entry.one_process && entry.serves({}))
        << text;
}

/// Makes a group of threads that meet as processes do, through files.
struct Made {
  std::vector<std::string> backends;
  std::vector<std::string> reasons;
  std::vector<std::string> local_ranks;  ///< "1 of 2", "; ", and that within ranks 2 and 0.
};
Made make(const std::vector<std::string>& names,
          std::chrono::nanoseconds timeout = test::group_timeout) {
  const test::TemporaryDirectory directory;
  const auto size = static_cast<int>(names.size());
  Made made;
  made.backends.resize(names.size());
  made.reasons.resize(names.size());
  made.local_ranks.resize(names.size());
  std::vector<std::exception_ptr> thrown(names.size());
  test::on_threads(size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      auto group = ProcessGroup::create({.backend = names[r],
                                         .store = make_file_store(directory.path()),
                                         .rank = rank,
                                         .size = size,
                                         .timeout = timeout});
      std::vector<float> one{1};
      group.all_reduce(one);
      EXPECT_EQ(one[0], static_cast<float>(size));
      made.backends[r] = group.backend();
      made.reasons[r] = group.backend_reason();
      const auto local_rank = [](const ProcessGroup& of) {
        return fmt::format("{} of {}", of.local_rank(), of.local_size());
      };
      made.local_ranks[r] = local_rank(group);
      if (size == 3)
        if (const auto part = group.subset({2, 0})) made.local_ranks[r] += "; " + local_rank(*part);
    } catch (...) {
      thrown[r] = std::current_exception();
    }
  });
  for (const bool timeouts : {false, true})  // Another rank's error says more.
    for (const auto& error : thrown)
      if (error != nullptr && (to_error(error).code() == Errc::timeout) == timeouts)
        std::rethrow_exception(error);
  return made;
}

TEST(Auto, AllRanksMakeTheBackendOfTheirHosts) {
  struct Row {
    const char* hosts;
    RankPlacement placement;
    std::vector<std::string> local_ranks;
  };
  const std::vector<std::string> together{"0 of 3; 1 of 2", "1 of 3", "2 of 3; 0 of 2"};
  const std::vector<Row> rows{
      {nullptr, RankPlacement::host, together},
      {"a", RankPlacement::host, together},
      {"a,b,c", RankPlacement::apart, {"0 of 1; 0 of 1", "0 of 1", "0 of 1; 0 of 1"}},
      {"a,b,b", RankPlacement::hosts, {"0 of 1; 0 of 1", "0 of 2", "1 of 2; 0 of 1"}}};
  for (const auto& [hosts, placement, local_ranks] : rows) {
    const test::ScopedVariables variables{{"TUTTI_HOSTS", hosts}};
    std::optional<BackendChoice> expected;
    try {
      expected = choose_backend("auto", {}, placement);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::unsupported);
      continue;  // A build without a backend between processes.
    }
    const auto made = make({"auto", "auto", "auto"});
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(made.backends[r], expected->entry->name) << "rank " << r;
      EXPECT_EQ(made.reasons[r], expected->because) << "rank " << r;
    }
    EXPECT_EQ(made.local_ranks, local_ranks);
  }
}

TEST(Auto, AGroupOfOneRankHasNoTransport) {
  const auto made = make({"auto"});
  EXPECT_EQ(made.backends[0], "local");
}

TEST(Auto, ARankThatNamesAnotherBackendIsAMismatch) {
  const auto others = std::ranges::find_if(
      backends(), [](const auto& entry) { return !entry.one_process && entry.serves({}); });
  if (others == backends().end()) GTEST_SKIP() << "no backend between processes";
  expect_error(Errc::mismatch, {"backend 'auto'", "backend '" + std::string(others->name) + "'"},
               [&] {
                 (void)make({"auto", std::string(others->name)}, std::chrono::milliseconds(200));
               });
}

}  // namespace
}  // namespace tutti::internal
