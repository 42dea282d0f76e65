// Access to the arrays of other processes: segments that cannot be mapped, processes that stop.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "memory/collectives.hpp"
#include "memory/mapped_memory.hpp"
#include "memory/member.hpp"
#include "shm/rendezvous.hpp"
#include "support.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"

namespace tutti::test {
namespace {

namespace memory = backend::memory;
namespace shm = backend::shm;
using memory::Location;

/// A rank whose warnings are counted.
struct Rank {
  std::shared_ptr<std::vector<std::string>> warnings = std::make_shared<std::vector<std::string>>();
  std::shared_ptr<memory::Member> member;
  std::uint64_t calls = 0;

  Rank(RankProcess& rank, const std::string& name)
      : member(shm::join(
            BackendInit{.store = make_prefix_store(rank.options(name).store, name),
                        .rank = rank.rank(),
                        .size = rank.size(),
                        .name = name,
                        .timeout = 10s,
                        .logger = [warnings = warnings](LogLevel level, std::string_view text) {
                          if (level <= LogLevel::warning) warnings->emplace_back(text);
                        }})) {}

  /// Sums over the ranks. True if the ranks accessed each other's arrays.
  bool sums(Tensor& data) {
    std::ranges::fill(data.values<std::int32_t>(), member->rank() + 1);
    const Op op{.kind = Operation::all_reduce, .in = data, .out = data, .reduce = ReduceOp::sum};
    const std::vector ops{op};
    const auto before = member->moved();
    memory::run_collectives(*member, ops,
                            {.seq = calls++, .fingerprint = 1, .deadline = Deadline::after(10s)});
    const auto want = member->size() * (member->size() + 1) / 2;
    EXPECT_TRUE(std::ranges::all_of(data.values<std::int32_t>(),
                                    [&](std::int32_t value) { return value == want; }));
    return member->moved() != before;
  }
};

/// While this exists, peers cannot open a descriptor.
class Hidden {
 public:
  explicit Hidden(int number) : number_(number), kept_(::fcntl(number, F_DUPFD_CLOEXEC, 0)) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup3(nothing, number_, O_CLOEXEC);
    ::close(nothing);
  }
  ~Hidden() {
    ::dup3(kept_, number_, O_CLOEXEC);
    ::close(kept_);
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  int number_;
  int kept_;
};

TEST(ShmAccess, ASegmentThatCouldNotBeMappedIsTriedAgain) {
  on_processes({.size = 3}, [](RankProcess& process) {
    Rank rank(process, "again");
    auto& memory = rank.member->memory();
    // Segments of their own.
    Tensor first(memory, Shape{1'000'000}, DType::i32);
    Tensor second(memory, Shape{2'000'000}, DType::i32);
    const auto place = memory.find(first.data(), first.bytes());
    EXPECT_NE(place.segment, memory.find(second.data(), second.bytes()).segment);
    {
      std::optional<Hidden> hidden;
      if (process.last()) hidden.emplace(place.file);
      process.barrier();
      for (int i = 0; i < 5; ++i) EXPECT_FALSE(rank.sums(first));
      // Other segments are not concerned.
      EXPECT_TRUE(rank.sums(second));
      EXPECT_FALSE(rank.sums(first));
      process.barrier();
    }
    process.barrier();
    int slow = 0;
    while (slow < 10 && !rank.sums(first)) ++slow;
    EXPECT_LT(slow, 10);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(rank.sums(first));
    // Once, where it failed; the last rank finds its own descriptor hidden too.
    EXPECT_EQ(rank.warnings->size(), 1U);
    for (const auto& text : *rank.warnings) {
      EXPECT_NE(text.find("group 'again'"), std::string::npos) << text;
      EXPECT_NE(text.find("cannot map the memory of rank 2"), std::string::npos) << text;
      EXPECT_NE(text.find("slower"), std::string::npos) << text;
    }
    return std::string();
  });
}

TEST(ShmAccess, RetiredSegmentsAreUnmapped) {
  on_processes({.size = 2}, [](RankProcess& process) {
    Rank rank(process, "retired");
    std::size_t most = 0;
    for (std::int64_t size = 4'000'000; size < 16'000'000; size += 500'000) {
      Tensor data(rank.member->memory(), Shape{size}, DType::i32);
      EXPECT_TRUE(rank.sums(data));
      most = std::max(most, mappings_of("memfd:tutti"));
    }
    // Of 24 segments of each rank; the group has one more. Up to 188 MiB of a rank are kept.
    EXPECT_LE(most, 1U + 2 * 7);
    return std::string();
  });
}

TEST(ShmAccess, ArraysAreAccessedInMemoryThatWasReturned) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_REMOVE";
  on_processes({.size = 2}, [](RankProcess& process) {
    Rank rank(process, "returned");
    auto& memory = rank.member->memory();
    const Shape shape{1'000'000};
    (void)Tensor(memory, Shape{2'100'000}, DType::i32);  // Both are in its segment.
    Tensor first(memory, shape, DType::i32);
    Tensor second(memory, shape, DType::i32);
    EXPECT_EQ(memory.find(first.data(), 1).segment, memory.find(second.data(), 1).segment);
    EXPECT_TRUE(rank.sums(first));
    EXPECT_TRUE(rank.sums(second));
    const void* const place = first.data();
    first = Tensor();
    // The system has no memory, so all that is free is returned.
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit little{1 << 20, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &little);
    expect_error(Errc::resource_exhausted, {},
                 [&] { (void)memory.allocate(std::size_t{64} << 20, {}); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    Tensor again(memory, shape, DType::i32);
    EXPECT_EQ(again.data(), place);
    EXPECT_EQ(again.values<std::int32_t>()[500'000], 0) << "was not returned";
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(rank.sums(again));
      EXPECT_TRUE(rank.sums(second));
    }
    return std::string();
  });
}

// Rank 1 is stopped at any moment of a call that takes many milliseconds. If it accesses the array
// of rank 0 then, the segment of the array is withdrawn.
TEST(ShmAccess, AProcessThatStopsInItsAccessCostsNoMoreThanTheDeadline) {
  constexpr std::int64_t count = 16 << 20;
  bool withdrawn = false;
  for (int attempt = 0; attempt < 20 && !withdrawn; ++attempt) {
    const auto output = on_processes({.size = 2}, [&](RankProcess& process) -> std::string {
      auto group = ProcessGroup::create(options_of(process, "stops"));
      Tensor data(group.memory(), Shape{count}, DType::i32);
      std::ranges::fill(data.values<std::int32_t>(), 1);
      group.all_reduce(data);  // Maps the segments.
      process.barrier();
      if (process.last()) {
        std::thread stopper([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(1000 + attempt * 1700));
          ::raise(SIGSTOP);
        });
        try {
          for (;;) group.all_reduce(data);
        } catch (const Error& error) {
          EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::aborted)
              << error.what();
        }
        stopper.join();
        process.barrier();
        return {};
      }
      const auto start = Clock::now();
      auto last = start;
      const auto error = expect_error(Errc::timeout, {"deadline", "missing: 1"}, [&] {
        for (;;) {
          last = Clock::now();
          group.all_reduce(data, ReduceOp::sum, {.timeout = 300ms});
        }
      });
      EXPECT_LT(since(last), (300 + 200 + 150) * patience());
      EXPECT_EQ(error.where().rank, 1);
      // After the error the program may use its array.
      const auto values = data.values<std::int32_t>();
      std::ranges::fill(values, -5);
      ::kill(process.process(1), SIGCONT);
      process.barrier();
      const auto changed =
          std::ranges::count_if(values, [](std::int32_t value) { return value != -5; });
      // Its memory is not used again if rank 1 might write to it.
      const void* const place = data.data();
      data = Tensor();
      const Tensor next(group.memory(), Shape{count}, DType::i32);
      const bool is_withdrawn = next.data() != place;
      EXPECT_LE(changed * static_cast<std::int64_t>(sizeof(std::int32_t)), is_withdrawn ? 8192 : 0);
      return is_withdrawn ? "withdrawn" : "";
    });
    withdrawn = output[0] == "withdrawn";
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(withdrawn) << "no attempt stopped the process in its access";
}

}  // namespace
}  // namespace tutti::test
