// Shared memory of several processes.

#include "shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

using backend::shm::Descriptor;
using backend::shm::make_file;
using backend::shm::make_file_in;
using backend::shm::Segment;

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
