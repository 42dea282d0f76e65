// The n-th allocation of a rank fails, for every n. The rank gets resource_exhausted or the right
// result; its peer gets the right result or an error, soon. Nothing crashes, hangs or throws
// another exception.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/process_group.hpp>

#include "failing_allocation.hpp"
#include "phases.hpp"
#include "support/memories.hpp"
#include "support/processes.hpp"
#include "support/resources.hpp"
#include "support/temporary_directory.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int ranks = 2;
/// A peer is told within 2 s. The machine may be busy, so an error may take longer here.
constexpr auto soon = 6s;
constexpr auto timeout = 10s;

/// The record that a rank writes for the test, in memory that its process shares with it.
struct Outcome {
  enum class Kind : std::uint8_t { none, right, wrong, error, other_exception };
  Kind kind = Kind::none;
  Errc code{};
  std::int64_t ms = 0;  // From the beginning of the phase.
  std::array<char, 600> text{};

  void set(Kind k, std::string_view what) {
    kind = k;
    text[what.copy(text.data(), text.size() - 1)] = 0;
  }
};

struct Trial {
  std::array<Outcome, ranks> phase;
  std::array<Outcome, ranks> barrier;  // A barrier after the phase.
  bool has_failed = false;
  Frames frames{};
};

template <typename Body>
void record(Outcome& outcome, const Body& body) {
  const auto begin = Clock::now();
  try {
    outcome.set(body() ? Outcome::Kind::right : Outcome::Kind::wrong, "");
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.set(Outcome::Kind::error, error.what());
  } catch (const std::exception& error) {
    outcome.set(Outcome::Kind::other_exception, error.what());
  }
  outcome.ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
}

/// Runs one rank of a phase, in which the n-th allocation of rank 0 fails.
void run_rank(int rank, const std::string& backend, std::shared_ptr<Store> store,
              const Phase& phase, std::int64_t n, Trial& trial) {
  FailingMemory memory([](std::size_t) {
    if (allocation_fails()) fail(Errc::resource_exhausted, "the memory of the test has ended");
  });
  const auto begin = [&] {
    if (rank == 0) fail_allocation(n, trial.frames);
  };
  const auto end = [&] {
    if (rank != 0) return;
    trial.has_failed = end_failing() || trial.has_failed;
  };
  const GroupOptions options{.backend = backend_here(backend),
                             .store = std::move(store),
                             .rank = rank,
                             .size = ranks,
                             .timeout = timeout,
                             .memory = &memory,
                             .logger = [](LogLevel, std::string_view) {}};
  std::optional<ProcessGroup> group;
  auto& outcome = trial.phase[static_cast<std::size_t>(rank)];
  if (phase.run == nullptr) {
    begin();
    record(outcome, [&] {
      group.emplace(ProcessGroup::create(options));
      return true;
    });
    end();
  } else {
    group.emplace(ProcessGroup::create(options));
    group->barrier();
    record(outcome, [&] { return phase.run(*group, begin); });
    if (!phase.destroys) end();
  }
  if (group && !phase.destroys)
    record(trial.barrier[static_cast<std::size_t>(rank)], [&] {
      group->barrier();
      return true;
    });
  group.reset();
  end();
}

std::string describe(const Outcome& outcome) {
  constexpr std::array names{"nothing", "right", "wrong", "error", "another exception"};
  return fmt::format("{} after {} ms: {}", names[static_cast<std::size_t>(outcome.kind)],
                     outcome.ms, outcome.text.data());
}

std::string describe(const Trial& trial) {
  std::string text;
  for (std::size_t r = 0; r < ranks; ++r)
    text += fmt::format("\n  rank {}: {}\n    barrier: {}", r, describe(trial.phase[r]),
                        describe(trial.barrier[r]));
  text += "\n  addr2line -Cfpe libtutti.so";
  for (const auto frame : trial.frames)
    if (frame != 0) text += fmt::format(" {:#x}", frame);
  return text;
}

/// True for an outcome that a rank may have when an allocation of rank 0 has failed.
bool is_allowed(const Outcome& outcome) {
  if (outcome.kind == Outcome::Kind::right) return true;
  if (outcome.kind != Outcome::Kind::error || outcome.ms > soon / 1ms) return false;
  return outcome.code == Errc::resource_exhausted || outcome.code == Errc::mismatch ||
         outcome.code == Errc::aborted || outcome.code == Errc::peer_lost;
}

/// True if the rank whose allocation failed says so. Of a pending call, a later error has it in its
/// text.
bool is_own(const Outcome& outcome) {
  return outcome.kind == Outcome::Kind::right || outcome.code == Errc::resource_exhausted ||
         std::string_view(outcome.text.data()).find("memory") != std::string_view::npos;
}

/// The threads and descriptors of this process that stay 2 s after its group has ended; empty:
/// none.
std::string left_over(const Resources& before) {
  const auto after = Resources::await(before.but_mappings(), 2s);
  if (after.fit(before.but_mappings())) return {};
  std::ostringstream text;
  text << after << "; before the group " << before;
  return text.str();
}

/// Runs a phase with the n-th allocation failing; n is from `first`, every `step`, while there is
/// one. Ranks are processes, for `local` threads of one.
void fail_each(const std::string& backend, const Phase& phase, std::int64_t step) {
  constexpr std::int64_t most = 400;
  void* shared =
      ::mmap(nullptr, sizeof(Trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& trial = *static_cast<Trial*>(shared);
  std::int64_t slowest = 0;
  std::int64_t n = 1;
  for (; n <= most; n += step) {
    trial = {};
    const TemporaryDirectory directory;
    const bool threads = backend == "local";
    const auto ends = in_children(threads ? 1 : ranks, [&](int child) {
      use_one_heap();
      const auto before = Resources::now();
      if (threads) {
        const auto store = make_memory_store();
        std::thread other([&] { run_rank(1, backend, store, phase, n, trial); });
        run_rank(0, backend, store, phase, n, trial);
        other.join();
      } else {
        run_rank(child, backend, make_file_store(directory.path()), phase, n, trial);
      }
      return left_over(before);
    });
    for (std::size_t i = 0; i < ends.size(); ++i) {
      EXPECT_TRUE(ends[i].ended) << "process " << i << " crashed or hung; allocation " << n
                                 << describe(trial);
      EXPECT_EQ(ends[i].output, "") << "process " << i << "; allocation " << n << describe(trial);
    }
    for (const auto* outcomes : {&trial.phase, &trial.barrier})
      for (const auto& outcome : *outcomes) {
        const bool none = outcome.kind == Outcome::Kind::none && outcomes == &trial.barrier;
        EXPECT_TRUE(none || is_allowed(outcome)) << "allocation " << n << describe(trial);
        if (outcome.kind == Outcome::Kind::error) slowest = std::max(slowest, outcome.ms);
      }
    EXPECT_TRUE(is_own(trial.phase[0]) || backend == "local")
        << "allocation " << n << describe(trial);
    if (!trial.has_failed) break;
  }
  testing::Test::RecordProperty("allocations", std::to_string(n));
  testing::Test::RecordProperty("slowest_error_ms", std::to_string(slowest));
  std::printf("%s %s: %ld trials, slowest error %ld ms\n", backend.c_str(), phase.name.c_str(),
              static_cast<long>((n - 1) / step + 1), static_cast<long>(slowest));
  ::munmap(shared, sizeof(Trial));
  EXPECT_TRUE(n > 1 || phase.destroys) << "no allocation was made";
}

struct Case {
  std::string backend;
  Phase phase;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.phase.name << " over " << c.backend;
}

std::vector<Case> cases(const std::vector<std::string>& wanted) {
  std::vector<Case> all;
  for (const auto& entry : backends())
    if (std::ranges::find(wanted, entry.name) != wanted.end())
      for (const auto& phase : phases()) all.push_back({std::string(entry.name), phase});
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.backend + '_' + info.param.phase.name;
}

class Exhaustion : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Phases, Exhaustion, testing::ValuesIn(cases({"local", "shm", "tcp"})),
                         name_of);

TEST_P(Exhaustion, OfMemoryIsAnErrorOfItsRankAndItsPeer) {
  fail_each(GetParam().backend, GetParam().phase, reduced() ? 19 : 7);
}

class SlowExhaustion : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Phases, SlowExhaustion,
                         testing::ValuesIn(cases({"local", "shm", "gloo", "tcp", "ucx", "hier"})),
                         name_of);

TEST_P(SlowExhaustion, OfMemoryIsAnErrorOfItsRankAndItsPeer) {
  fail_each(GetParam().backend, GetParam().phase, 1);
}

}  // namespace
}  // namespace tutti::test
