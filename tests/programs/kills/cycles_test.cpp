// Groups that are made, lose a rank or are aborted, and are destroyed, again and again in the same
// processes. Nothing grows: threads, descriptors, mappings, memory, keys in the store, files in
// /dev/shm.

#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "../../backends/gloo/rank_processes.hpp"
#include "backends.hpp"
#include "support/resources.hpp"
#include "support/scoped_variables.hpp"
#include "support/temporary_directory.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

/// Until memory has settled. Transports and the C library set up things once.
constexpr int warm_up = 10;

class Cycles : public testing::TestWithParam<std::string> {
 protected:
  void expect_no_growth(int cycles);

 private:
  void run_cycle(const RankProcess& rank, int number) const;
  void survive_all(const RankProcess& rank, int cycles) const;
  void die_in_all(const RankProcess& rank, int cycles) const;

  const TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Cycles, testing::ValuesIn(backends_between_processes()),
                         BackendText());

/// In every other cycle the last rank dies, otherwise it aborts the group.
void Cycles::run_cycle(const RankProcess& rank, int number) const {
  auto options = rank.options(fmt::format("cycle{}", number));
  options.backend = GetParam();
  options.store = make_file_store(directory_.path());
  auto group = ProcessGroup::create(options);
  std::vector<std::int32_t> data(20'000, 1);
  group.all_reduce(data);
  EXPECT_EQ(data.front(), group.size());
  group.barrier();
  if (!rank.last())
    EXPECT_THROW(for (;;) group.all_reduce(data, ReduceOp::max), Error);
  else if (number % 2 == 0)
    ::raise(SIGKILL);
  else
    group.abort("the fault of the cycle");
}

/// Without free memory of the heap, of which a busy cycle may leave more than others.
std::int64_t used_kib() {
  (void)::malloc_trim(0);
  return static_cast<std::int64_t>(holdings().resident_kib);
}

void Cycles::survive_all(const RankProcess& rank, int cycles) const {
  use_one_heap();
  for (int i = 0; i < warm_up; ++i) run_cycle(rank, i);
  const auto before = Resources::settled();
  const auto kib = used_kib();
  for (int i = 0; i < cycles; ++i) run_cycle(rank, warm_up + i);
  const auto after = Resources::await(before, 2s);
  const auto grown = used_kib() - kib;
  EXPECT_TRUE(after.fit(before)) << after << "; before " << before;
  // As for groups without a fault (gloo resources).
  if (!reduced()) {
    EXPECT_LT(grown, 512 + 4 * cycles);
  }
  if (rank.rank() == 0)
    std::cout << after << " after " << cycles << " cycles, " << before << " before, " << grown
              << " KiB more\n";
}

/// Each time in another process.
void Cycles::die_in_all(const RankProcess& rank, int cycles) const {
  for (int i = 0; i < warm_up + cycles; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      run_cycle(rank, i);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  }
}

std::set<std::string> files_in(const std::string& directory) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) found.insert(entry.path().string());
  return found;
}

void Cycles::expect_no_growth(int cycles) {
  // Ranks 1 and 2 have one host, rank 0 another one, for the backend hier.
  const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b"}};
  const auto before = files_in("/dev/shm");
  on_processes({.size = 3, .limit = 300s}, [&](RankProcess& rank) {
    rank.last() ? die_in_all(rank, cycles) : survive_all(rank, cycles);
    return std::string();
  });
  // Other programs may use the folder, but only for a moment.
  const auto more = [&] {
    std::vector<std::string> all;
    for (const auto& file : files_in("/dev/shm"))
      if (!before.contains(file)) all.push_back(file);
    return all;
  };
  for (const auto limit = Deadline::after(2s); !more().empty() && !limit.expired();)
    std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(more().empty()) << fmt::format("{}", fmt::join(more(), "\n"));
  // Of each name of a group one key stays, the number of its groups.
  std::vector<std::string> keys;
  for (const auto& file : files_in(directory_.path()))
    if (!file.ends_with("groups.v") && file.find("/.") == std::string::npos) keys.push_back(file);
  EXPECT_TRUE(keys.empty()) << fmt::format("{}", fmt::join(keys, "\n"));
}

TEST_P(Cycles, GiveEverythingBack) {
  expect_no_growth(10);
}

TEST_P(Cycles, SlowGiveEverythingBack) {
  expect_no_growth(100);
}

}  // namespace
}  // namespace tutti::test
