// Memory that processes share.

#include "shm/mapped_memory.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include "../gloo/rank_processes.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"

namespace tutti::test {
namespace {

using backend::shm::Location;
using backend::shm::MappedMemory;

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

TEST(MappedMemory, OfTheParentIsRefusedInAForkedChild) {
  const auto memory = MappedMemory::of_process();
  Tensor kept(*memory, Shape{1000}, DType::f32);
  const auto child = in_child([&] {
    expect_error(Errc::forked, {"fork"}, [&] { (void)memory->allocate(8, {}); });
    EXPECT_NE(MappedMemory::of_process(), memory);
    static_cast<float*>(kept.data())[0] = 7;
    return std::string();
  });
  EXPECT_TRUE(child.ended);
  EXPECT_EQ(static_cast<float*>(kept.data())[0], 7);
}

}  // namespace
}  // namespace tutti::test
