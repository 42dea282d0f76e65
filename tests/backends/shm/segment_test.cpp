// Shared memory of several processes.

#include "memory/segment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "../gloo/rank_processes.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

using backend::memory::allocate_part;
using backend::memory::AvailableMemory;
using backend::memory::Descriptor;
using backend::memory::FileOptions;
using backend::memory::make_file;
using backend::memory::make_file_in;
using backend::memory::MemoryFigures;
using backend::memory::Segment;

constexpr std::size_t size = 64 << 10;

TEST(Segment, BeginsAsZerosAndIsSharedWithAnotherProcess) {
  const auto file = make_file(size);
  const auto segment = Segment::map(file, size);
  EXPECT_EQ(segment->bytes(), size);
  EXPECT_TRUE(std::all_of(segment->data(), segment->data() + size,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  const auto child = in_child([&] {
    segment->data()[size - 1] = std::byte{7};
    return std::string();
  });
  EXPECT_TRUE(child.ended);
  EXPECT_EQ(segment->data()[size - 1], std::byte{7});
}

TEST(Segment, IsMappedOnceInAProcess) {
  const auto file = make_file(size);
  const auto first = Segment::map(file, size);
  EXPECT_EQ(Segment::map(Descriptor(::dup(file.get())), size), first);
  EXPECT_NE(Segment::map(make_file(size), size), first);
}

TEST(Segment, OutlivesItsDescriptor) {
  auto file = make_file(size);
  const auto segment = Segment::map(file, size);
  file.reset();
  segment->data()[0] = std::byte{1};
  EXPECT_EQ(segment->data()[0], std::byte{1});
}

TEST(Segment, CannotShrinkUnderItsUsers) {
  const auto file = make_file(size);
  EXPECT_NE(::ftruncate(file.get(), 0), 0);
  EXPECT_NE(::ftruncate(file.get(), size * 2), 0);
  const Descriptor shrinkable(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(shrinkable.get(), size), 0);
  expect_error(Errc::backend, {"not sealed"}, [&] { (void)Segment::map(shrinkable, size); });
}

TEST(Segment, OfAnotherSizeIsRefused) {
  const auto file = make_file(size);
  expect_error(Errc::backend, {std::to_string(size), std::to_string(2 * size)},
               [&] { (void)Segment::map(file, 2 * size); });
}

TEST(Segment, ThatDoesNotFitIsAnErrorWithItsSize) {
  struct statvfs memory {};
  if (::statvfs("/dev/shm", &memory) != 0 || memory.f_blocks == 0)
    GTEST_SKIP() << "/dev/shm has no limit here";
  // Refused at once. A memfd has no limit of its own, so it would take all memory first.
  const std::size_t huge = (memory.f_blocks + 1) * memory.f_frsize;
  expect_error(Errc::resource_exhausted, {std::to_string(huge), "/dev/shm"},
               [&] { (void)make_file_in("/dev/shm", huge); });
}

// The kernel would end processes instead.
TEST(Segment, LargerThanTheAvailableMemoryIsAnErrorWithBothSizes) {
  const auto before = holdings().descriptors;
  const FileOptions little{.available = [] { return AvailableMemory{3200 << 10, "a fake"}; }};
  expect_error(Errc::resource_exhausted, {"4194304 bytes", "3072000 bytes are available", "a fake"},
               [&] { (void)make_file(4 << 20, little); });
  expect_error(Errc::resource_exhausted, {"4194304 bytes", "/dev/shm", "a fake"},
               [&] { (void)make_file_in("/dev/shm", 4 << 20, little); });
  (void)make_file(2 << 20, little);
  // Another process takes the memory meanwhile.
  int looks = 0;
  const FileOptions less{.available = [&] {
    return AvailableMemory{looks++ == 0 ? 64U << 20 : 1U << 20, "a fake"};
  }};
  expect_error(Errc::resource_exhausted, {"8388608 bytes", "a fake"},
               [&] { (void)make_file(8 << 20, less); });
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(holdings().descriptors, before);
}

TEST(Segment, CanReturnAPartOfItsMemoryAndAllocateItAgain) {
  if (is_emulated()) GTEST_SKIP() << "qemu ignores MADV_REMOVE";
  const auto file = make_file(4 * size);
  const auto segment = Segment::map(file, 4 * size, Segment::Use::arrays);
  std::fill_n(segment->data(), 4 * size, std::byte{1});
  const auto blocks = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  ASSERT_TRUE(segment->return_pages(size, 2 * size));
  EXPECT_EQ(blocks(), 2 * size);
  const MemoryFigures none = [] { return AvailableMemory{0, "a fake"}; };
  expect_error(Errc::resource_exhausted, {std::to_string(2 * size), "a fake"},
               [&] { allocate_part(file, size, 2 * size, none); });
  allocate_part(file, size, 2 * size, [] { return backend::memory::available_memory(); });
  EXPECT_EQ(blocks(), 4 * size);
  EXPECT_EQ(segment->data()[size - 1], std::byte{1});
  EXPECT_EQ(segment->data()[size], std::byte{0});
  EXPECT_EQ(segment->data()[3 * size], std::byte{1});
}

TEST(Segment, OfArraysIsInMemoryAlone) {
  const TemporaryDirectory directory;
  struct statfs system {};
  ASSERT_EQ(::statfs(directory.path().c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)
    GTEST_SKIP() << "temporary files are in memory here";
  expect_error(Errc::resource_exhausted, {directory.path(), "not in memory"},
               [&] { (void)make_file_in(directory.path(), size, {.only_memory = true}); });
  (void)make_file_in("/dev/shm", size, {.only_memory = true});
}

TEST(Segment, MayBeAnUnnamedFile) {
  const TemporaryDirectory directory;
  const auto file = make_file_in(directory.path(), size);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const auto segment = Segment::map(file, size);
  segment->data()[size - 1] = std::byte{1};
  const auto in_memory = make_file_in("/dev/shm", size);
  EXPECT_NE(Segment::map(in_memory, size), segment);
  expect_error(Errc::resource_exhausted, {"/no/such/place", std::to_string(size)},
               [] { (void)make_file_in("/no/such/place", size); });
}

}  // namespace
}  // namespace tutti::test
