// A rank is killed at a random moment while all ranks call one operation again and again. Every
// survivor gets peer_lost with the dead rank and no other, in time, makes a new group with the
// other survivors, and gives all resources back. In a part of the trials the dead rank is rank 0,
// which serves the store. Ranks are processes.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../../backends/gloo/rank_processes.hpp"
#include "backends.hpp"
#include "operations.hpp"
#include "support/errors.hpp"
#include "support/resources.hpp"
#include "support/scoped_variables.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr unsigned seed = 20'261;
constexpr std::size_t sizes_in_bytes[] = {4, std::size_t{64} << 10, std::size_t{32} << 20};

struct Trial {
  std::string backend;
  const Operation* operation = nullptr;
  std::size_t bytes = 0;
  int size = 3;
  int killed = 0;
  bool serves = false;                 // The killed rank serves the store.
  std::chrono::microseconds moment{};  // From the first call on.
};

std::string to_string(const Trial& t) {
  return fmt::format("{}, {}, {} B, rank {} of {}{}, after {} us", t.backend, t.operation->name,
                     t.bytes, t.killed, t.size, t.serves ? " with the store" : "",
                     t.moment.count());
}

/// The record that the killed rank leaves for the others, who may have no store.
struct Kill {
  std::atomic<int> ready;          // Survivors that are about to call.
  std::atomic<Clock::rep> moment;  // Just before the signal.
};

GroupOptions options_of(const RankProcess& rank, const Trial& t, const std::string& name) {
  auto options = rank.options(name);
  options.backend = t.backend;
  return options;
}

void expect_sums(ProcessGroup& group) {
  std::vector<std::int32_t> data(1000, group.rank() + 1);
  group.all_reduce(data);
  EXPECT_EQ(data, std::vector<std::int32_t>(1000, group.size() * (group.size() + 1) / 2));
}

/// Transports and the C library set up things once, also for groups that fail.
void warm_up(RankProcess& rank, const Trial& t) {
  auto group = ProcessGroup::create(options_of(rank, t, "warm"));
  Arrays arrays(group, t.bytes);
  t.operation->call(group, arrays);
  group.barrier();
  if (rank.last())
    group.abort("to warm up");
  else
    EXPECT_THROW(group.barrier(), Error);
}

[[noreturn]] void die(const RankProcess& rank, const Trial& t, ProcessGroup& group, Arrays& arrays,
                      const SharedPage<Kill>& kill) {
  const std::thread killer([&] {
    while (kill->ready < rank.size() - 1) std::this_thread::yield();
    std::this_thread::sleep_for(t.moment);
    kill->moment = Clock::now().time_since_epoch().count();
    ::raise(SIGKILL);
  });
  for (;; ++arrays.calls) t.operation->call(group, arrays);
}

/// Returns the times to the error and from there to the result of the new group, in milliseconds.
std::string survive(RankProcess& rank, const Trial& t, ProcessGroup group, Arrays& arrays,
                    const SharedPage<Kill>& kill) {
  ++kill->ready;
  std::vector<Errc> codes{Errc::peer_lost};
  // Calls of a sub-group without the killed rank end because the parent has failed.
  if (t.operation->name == "subset") codes.push_back(Errc::aborted);
  const auto error = expect_error(codes, {fmt::format("rank {}", t.killed)}, [&] {
    for (;; ++arrays.calls) t.operation->call(group, arrays);
  });
  const auto heard = Clock::now();
  const auto killed = Clock::time_point(Clock::duration(kill->moment.load()));
  if (error.code() == Errc::peer_lost) {
    EXPECT_EQ(error.where().rank, t.killed) << error.what();
  }
  auto survivors = [&] {
    if (!t.serves) return group.shrink();
    auto options = options_of(rank, t, "survivors");
    options.store = make_prefix_store(rank.files(), "survivors/");
    --options.rank;
    --options.size;
    return ProcessGroup::create(options);
  }();
  EXPECT_EQ(survivors.size(), t.size - 1);
  expect_sums(survivors);
  return fmt::format("{} {}", Milliseconds(heard - killed).count(),
                     Milliseconds(Clock::now() - heard).count());
}

std::string run_rank(RankProcess& rank, const Trial& t, const SharedPage<Kill>& kill) {
  if (t.serves) rank.use_tcp();
  warm_up(rank, t);
  const auto before = Resources::settled();
  std::string figures;
  {
    auto group = ProcessGroup::create(options_of(rank, t, "mortal"));
    Arrays arrays(group, t.bytes);
    if (rank.rank() == t.killed) die(rank, t, group, arrays, kill);
    figures = survive(rank, t, std::move(group), arrays, kill);
  }
  const auto after =
      Resources::await(before, std::chrono::ceil<std::chrono::milliseconds>(2s * patience()));
  EXPECT_TRUE(after.fit(before)) << after << "; before " << before;
  return fmt::format(
      "{} {}", figures,
      static_cast<std::int64_t>(after.mappings) - static_cast<std::int64_t>(before.mappings));
}

/// The numbers of all survivors of the trials.
struct Figures {
  std::vector<double> error_ms, group_ms, mappings;

  /// `of_rank`: the result of run_rank(). Prints it if it is slow.
  void add(const Trial& t, int rank, const std::string& of_rank) {
    std::istringstream words(of_rank);
    double error = 0;
    double group = 0;
    double more = 0;
    if (!(words >> error >> group >> more)) return;
    error_ms.push_back(error);
    group_ms.push_back(group);
    mappings.push_back(more);
    if (error > 200 || group > 1000)
      std::cout << fmt::format(
          "slow: error after {:.0f} ms, new group {:.0f} ms later on rank {}: {}\n", error, group,
          rank, to_string(t));
  }
  static double percentile(std::vector<double> values, double part) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    const auto at = std::ceil(part * static_cast<double>(values.size())) - 1;
    return values[static_cast<std::size_t>(std::max(at, 0.0))];
  }
  static std::string text(const std::vector<double>& values) {
    return fmt::format("{:.1f}, {:.1f}, {:.1f}", percentile(values, 0.5), percentile(values, 0.99),
                       percentile(values, 1));
  }
};

Figures run(const std::vector<Trial>& trials) {
  // Ranks 1 and 2 have one host, the others another one, for the backend hier.
  const ScopedVariables hosts{{"TUTTI_HOSTS", "a,b,b,a"}};
  Figures figures;
  for (const auto& t : trials) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, to_string(t));
    const SharedPage<Kill> kill;
    const auto output = on_processes({.size = t.size, .dies = t.killed, .limit = 60s},
                                     [&](RankProcess& rank) { return run_rank(rank, t, kill); });
    for (int r = 0; r < t.size; ++r)
      if (r != t.killed) figures.add(t, r, output[static_cast<std::size_t>(r)]);
  }
  std::cout << fmt::format(
      "{} kills (seed {}), 50 %, 99 % and most of {} survivors: error after {} ms, result of a new "
      "group {} ms later; at most {} mappings more\n",
      trials.size(), seed, figures.error_ms.size(), Figures::text(figures.error_ms),
      Figures::text(figures.group_ms), Figures::percentile(figures.mappings, 1));
  return figures;
}

/// Every operation with every size, in an order of the seed. Every fourth kill is of rank 0 with
/// the store.
std::vector<Trial> trials_of(const std::string& backend) {
  std::mt19937 random(seed);
  std::vector<Trial> trials;
  for (const auto& operation : operations())
    for (const auto bytes : sizes_in_bytes) {
      if (bytes != sizes_in_bytes[0] && operation.name == "barrier") continue;
      Trial t{.backend = backend, .operation = &operation, .bytes = bytes};
      t.size = 3 + static_cast<int>(random() % 2);
      t.serves = trials.size() % 4 == 0;
      t.killed = t.serves ? 0 : static_cast<int>(random() % static_cast<unsigned>(t.size));
      t.moment =
          std::chrono::microseconds(random() % (bytes < sizes_in_bytes[2] ? 10'000 : 60'000));
      trials.push_back(t);
    }
  std::ranges::shuffle(trials, random);
  // To look at one of them: TUTTI_TEST_KILLS="exclusive_scan, 65536 B".
  if (const char* only = std::getenv("TUTTI_TEST_KILLS"))
    std::erase_if(trials,
                  [&](const Trial& t) { return to_string(t).find(only) == std::string::npos; });
  return trials;
}

class Kills : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, Kills, testing::ValuesIn(backends_between_processes()),
                         BackendText());

// 40 kills with five backends.
TEST_P(Kills, EverySurvivorNamesTheDeadRankAndGoesOn) {
  auto trials = trials_of(GetParam());
  trials.resize(std::min<std::size_t>(trials.size(), 8));
  const auto figures = run(trials);
  EXPECT_LT(Figures::percentile(figures.error_ms, 1), 2000);  // The machine may be busy.
}

TEST_P(Kills, SlowEverySurvivorNamesTheDeadRankInTimeAndGoesOn) {
  const auto figures = run(trials_of(GetParam()));
  EXPECT_LE(Figures::percentile(figures.error_ms, 0.99), 200 * patience());
  EXPECT_LE(Figures::percentile(figures.group_ms, 1), 1000 * patience());
}

}  // namespace
}  // namespace tutti::test
