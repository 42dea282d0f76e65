// Memory that processes share.

#include "memory/mapped_memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../gloo/rank_processes.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/sanitizers.hpp"

namespace tutti::test {
namespace {

using backend::memory::Descriptor;
using backend::memory::Location;
using backend::memory::MappedMemory;

TEST(MappedMemory, ReusesWhatIsReleased) {
  const auto memory = MappedMemory::of_process();
  EXPECT_EQ(memory, MappedMemory::of_process());
  constexpr std::size_t size = 100'000;
  std::array<void*, 3> blocks{};
  for (auto& block : blocks) {
    block = memory->allocate(size, {});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U);
    std::memset(block, 1, size);
  }
  memory->release(blocks[1], size, {});
  EXPECT_EQ(memory->allocate(size, {}), blocks[1]);
  // Neighbours become one block again, in any order.
  for (const std::size_t i : {1U, 0U, 2U}) memory->release(blocks[i], size, {});
  EXPECT_EQ(memory->allocate(3 * size, {}), blocks[0]);
  memory->release(blocks[0], 3 * size, {});
}

TEST(MappedMemory, GivesEveryBlockALocationOfItsOwn) {
  const auto memory = MappedMemory::of_process();
  void* const none = memory->allocate(0, {});
  void* const other = memory->allocate(0, {});
  EXPECT_NE(none, other);
  auto* const large = static_cast<std::byte*>(memory->allocate(std::size_t{3} << 20, {}));
  const auto place = memory->find(large, std::size_t{3} << 20);
  const auto middle = memory->find(large + 1000, 8);
  EXPECT_EQ(middle.segment, place.segment);
  EXPECT_EQ(middle.offset, place.offset + 1000);
  EXPECT_NE(memory->find(none, 0).segment, Location::nowhere);
  const int elsewhere = 0;
  EXPECT_EQ(memory->find(&elsewhere, sizeof elsewhere).segment, Location::nowhere);
  EXPECT_EQ(memory->find(nullptr, 0).segment, Location::nowhere);
  EXPECT_EQ(memory->find(large, std::size_t{1} << 40).segment, Location::nowhere);
  memory->release(none, 0, {});
  memory->release(other, 0, {});
  memory->release(large, std::size_t{3} << 20, {});
}

TEST(MappedMemory, DoesNotReuseTheMemoryOfAQuarantinedArray) {
  const auto memory = MappedMemory::of_process();
  void* const block = memory->allocate(1000, {});
  memory->quarantine(block);
  memory->release(block, 1000, {});
  void* const next = memory->allocate(1000, {});
  EXPECT_NE(memory->find(next, 1000).segment, memory->find(block, 1000).segment);
  memory->release(next, 1000, {});
}

TEST(MappedMemory, EndsWithItsLastUser) {
  const auto before = holdings().descriptors;
  auto memory = MappedMemory::of_process();
  Tensor kept(*memory, Shape{1000}, DType::f32);
  const auto first = memory->find(kept.data(), 4000);
  memory.reset();
  EXPECT_EQ(holdings().descriptors, before + 1);
  std::memset(kept.data(), 1, 4000);
  kept = Tensor();
  EXPECT_EQ(holdings().descriptors, before);
  memory = MappedMemory::of_process();
  const Tensor next(*memory, Shape{1000}, DType::f32);
  EXPECT_GT(memory->find(next.data(), 4000).segment, first.segment) << "a number is used again";
}

TEST(MappedMemory, ThatIsNotThereIsAnErrorWithItsSize) {
  const auto child = in_child([] {
    const auto memory = MappedMemory::of_process();
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    expect_error(Errc::resource_exhausted, {"4194304 bytes", "shared memory"},
                 [&] { (void)memory->allocate(std::size_t{3} << 20, {}); });
    expect_error(Errc::resource_exhausted, {"bytes of shared memory"},
                 [&] { (void)memory->allocate(~std::size_t{0}, {}); });
    return std::string();
  });
  EXPECT_TRUE(child.ended);
}

// --- The memory that is left ---

constexpr std::size_t MiB = std::size_t{1} << 20;

/// A memory whose figures the test sets.
struct Limited {
  std::shared_ptr<std::atomic<std::uint64_t>> left =
      std::make_shared<std::atomic<std::uint64_t>>(std::uint64_t{1} << 40);
  std::shared_ptr<std::atomic<int>> looks = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<MappedMemory> memory =
      std::make_shared<MappedMemory>([left = left, looks = looks] {
        ++*looks;
        return backend::memory::AvailableMemory{*left, "a fake"};
      });
};

/// The bytes that the open segments of this process have.
std::size_t allocated() {
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat status {};
    if (target.find("memfd:tutti") != std::string::npos &&
        ::stat(entry.path().c_str(), &status) == 0)
      bytes += static_cast<std::size_t>(status.st_blocks) * 512;
  }
  return bytes;
}

TEST(MappedMemory, LargerThanTheAvailableMemoryIsAnErrorWithBothSizes) {
  const Limited limited;
  *limited.left = 16 * MiB;
  expect_error(Errc::resource_exhausted,
               {"67108864 bytes", "15728640 bytes are available", "a fake"},
               [&] { (void)limited.memory->allocate(63 * MiB, {}); });
  void* const block = limited.memory->allocate(MiB, {});
  *limited.left = 64 * MiB;
  void* const large = limited.memory->allocate(40 * MiB, {});
  *limited.left = 8 * MiB;  // A segment as large as all before does not fit, the array does.
  void* const small = limited.memory->allocate(3 * MiB, {});
  limited.memory->release(block, MiB, {});
  limited.memory->release(large, 40 * MiB, {});
  limited.memory->release(small, 3 * MiB, {});
}

TEST(MappedMemory, OfGrowingArraysIsReturnedToTheSystem) {
  const auto before = allocated();
  const auto descriptors = holdings().descriptors;
  const Limited limited;
  std::size_t most = 0;
  for (std::size_t size = 10 * MiB; size <= 60 * MiB; size += 2 * MiB) {
    Tensor array(*limited.memory, Shape{static_cast<std::int64_t>(size)}, DType::u8);
    array.values<std::uint8_t>().front() = 1;
    array.values<std::uint8_t>().back() = 1;
    most = std::max(most, allocated() - before);
  }
  // Twice the largest array and 64 MiB. All of them together are 910 MiB.
  EXPECT_LE(most, 190 * MiB);
  EXPECT_LE(holdings().descriptors, descriptors + 5);
  EXPECT_GE(holdings().descriptors, descriptors + 1);
}

TEST(MappedMemory, OfAPeakIsReturnedToTheSystemLater) {
  const auto before = allocated();
  const Limited limited;
  Tensor(*limited.memory, Shape{200 * static_cast<std::int64_t>(MiB)}, DType::u8);
  EXPECT_GE(allocated() - before, 200 * MiB);
  for (int i = 0; i < 3000; ++i) Tensor(*limited.memory, Shape{1000}, DType::u8);
  EXPECT_LE(allocated() - before, 80 * MiB);
}

TEST(MappedMemory, ALoopOfEqualSizesAsksTheSystemForNothing) {
  const Limited limited;
  const auto step = [&] {
    const Tensor kept(*limited.memory, Shape{5 * static_cast<std::int64_t>(MiB)}, DType::u8);
    for (const std::size_t size : {30 * MiB, 70 * MiB, 1 * MiB, 90 * MiB})
      Tensor(*limited.memory, Shape{static_cast<std::int64_t>(size)}, DType::u8);
  };
  step();
  step();
  const int looks = *limited.looks;
  const auto bytes = allocated();
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(*limited.looks, looks);
  EXPECT_EQ(allocated(), bytes);
}

TEST(MappedMemory, ReturnedMemoryIsAllocatedAgainOrRefused) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_REMOVE";
  const auto before = allocated();
  const Limited limited;
  constexpr std::size_t size = 6 * MiB - 5000;  // Not of whole pages.
  std::vector<Tensor> blocks;
  const auto fill = [&](std::size_t count) {
    while (blocks.size() < count) {
      auto& block = blocks.emplace_back(*limited.memory, Shape{size}, DType::u8);
      std::ranges::fill(block.values<std::uint8_t>(), static_cast<std::uint8_t>(blocks.size()));
    }
  };
  fill(8);
  for (std::size_t i = 0; i < 8; i += 2) blocks[i] = Tensor();
  const auto full = allocated() - before;
  // Memory is short, so all free memory goes back.
  *limited.left = 0;
  expect_error(Errc::resource_exhausted, {"a fake"},
               [&] { (void)limited.memory->allocate(100 * MiB, {}); });
  const auto less = allocated() - before;
  EXPECT_LE(less, full - 4 * (size - 2 * 4096));
  for (int i = 0; i < 3; ++i)
    expect_error(Errc::resource_exhausted, {"a fake"},
                 [&] { (void)limited.memory->allocate(size, {}); });
  EXPECT_LE(allocated() - before, less);
  auto kept = std::exchange(blocks, {});
  *limited.left = std::uint64_t{1} << 40;
  fill(3);
  EXPECT_GE(allocated() - before, 7 * size);
  EXPECT_LE(allocated() - before, full) << "not in the places of the released arrays";
  const auto expect_values = [](Tensor& block, std::size_t want) {
    EXPECT_TRUE(std::ranges::all_of(block.values<std::uint8_t>(), [&](std::uint8_t value) {
      return value == want;
    })) << want;
  };
  for (std::size_t i = 1; i < 8; i += 2) expect_values(kept[i], i + 1);
  for (std::size_t i = 0; i < 3; ++i) expect_values(blocks[i], i + 1);
}

TEST(MappedMemory, MayBeUsedByManyThreads) {
  const Limited limited;
  on_threads(4, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    std::vector<Tensor> blocks(8);
    for (int i = 0; i < 1500; ++i) {
      const auto bytes = static_cast<std::int64_t>(1 + random() % (i % 50 == 0 ? 9 * MiB : 50'000));
      auto& block = blocks[random() % blocks.size()];
      if (block.data() != nullptr) {
        const auto values = block.values<std::uint8_t>();
        const auto mark = static_cast<std::uint8_t>(16 * thread + 1);
        ASSERT_TRUE(values.front() == mark && values.back() == mark);
      }
      if (i % 300 == 299 && thread == 0) {  // Returns what is free.
        *limited.left = 0;
        EXPECT_THROW((void)limited.memory->allocate(500 * MiB, {}), Error);
        *limited.left = std::uint64_t{1} << 40;
      }
      try {
        block = Tensor();
        block = Tensor(*limited.memory, Shape{bytes}, DType::u8);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::resource_exhausted);
        continue;
      }
      block.values<std::uint8_t>().front() = static_cast<std::uint8_t>(16 * thread + 1);
      block.values<std::uint8_t>().back() = static_cast<std::uint8_t>(16 * thread + 1);
    }
  });
}

// --- fork() ---

/// True if a forked child gets SIGSEGV when it writes to this address.
bool faults_in_child(void* data) {
  const auto child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    *static_cast<volatile int*>(data) = 1;
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

TEST(MappedMemory, OfTheParentIsRefusedInAForkedChild) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_DONTFORK";
  auto memory = MappedMemory::of_process();
  Tensor kept(*memory, Shape{1000}, DType::f32);
  void* const data = kept.data();
  const auto child = in_child([&] {
    // The child may have other memory at the addresses of the parent's.
    auto* const page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) & ~4095UL);
    void* const other = ::mmap(page, 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    EXPECT_EQ(other, page);
    expect_error(Errc::forked, {"fork"}, [&] { (void)memory->allocate(8, {}); });
    EXPECT_NE(MappedMemory::of_process(), memory);
    Tensor own(*MappedMemory::of_process(), Shape{1000}, DType::f32);
    own.values<float>()[0] = 1;
    kept = Tensor();
    memory.reset();
    static_cast<int*>(other)[0] = 1;
    return std::string(testing::Test::HasFailure() ? "failed" : "");
  });
  EXPECT_TRUE(child.ended);
  EXPECT_EQ(child.output, "");
  kept.values<float>()[0] = 7;
  EXPECT_EQ(kept.values<float>()[0], 7);
}

TEST(MappedMemory, CannotBeAccessedByAForkedChild) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_DONTFORK";
  const auto memory = MappedMemory::of_process();
  Tensor kept(*memory, Shape{1000}, DType::f32);
  kept.values<float>()[0] = 7;
  EXPECT_TRUE(faults_in_child(kept.data()));
  EXPECT_EQ(kept.values<float>()[0], 7);
}

// A thread of the parent may hold any lock at the fork.
TEST(MappedMemory, IsUsableInAChildThatIsForkedAtAnyMoment) {
  if (address_sanitizer)
    GTEST_SKIP() << "a fork may happen while another thread has locked the sanitizer's allocator";
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) Tensor(*MappedMemory::of_process(), Shape{1000}, DType::u8);
  });
  for (int i = 0; i < 30; ++i) {
    const auto child = in_child([] {
      Tensor own(*MappedMemory::of_process(), Shape{1000}, DType::u8);
      own.values<std::uint8_t>()[0] = 1;
      return std::string();
    });
    EXPECT_TRUE(child.ended);
  }
  stop = true;
  busy.join();
}

// A child that was forked before, or a peer's group, may hold the files.
TEST(MappedMemory, EndsWithItsMemoryReturnedThoughAnotherProcessHoldsTheFile) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_REMOVE";
  auto memory = std::make_shared<MappedMemory>();
  Tensor array(*memory, Shape{4 << 20}, DType::u8);
  array.values<std::uint8_t>()[0] = 1;
  const Descriptor held(::dup(memory->find(array.data(), 1).file));
  ASSERT_TRUE(held.is_open());
  const auto blocks = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(held.get(), &status), 0);
    return status.st_blocks * 512;
  };
  EXPECT_GE(blocks(), 4 << 20);
  array = Tensor();
  memory.reset();
  EXPECT_LE(blocks(), ::sysconf(_SC_PAGESIZE)) << "only the label";
}

}  // namespace
}  // namespace tutti::test
