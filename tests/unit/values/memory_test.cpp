#include <tutti/memory.hpp>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

// Sanitizers end the program at a huge allocation, unless they may return null.
extern "C" const char* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}

namespace tutti {
namespace {

TEST(HostMemory, IsAlignedTo64BytesAndWritable) {
  for (const std::size_t bytes : {1U, 63U, 64U, 65U, 4096U, 1000003U}) {
    void* data = host_memory().allocate(bytes, {});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U) << bytes;
    std::memset(data, 0x5a, bytes);
    host_memory().release(data, bytes, {});
  }
}

TEST(HostMemory, NoBytesAreStillAnAddressOfTheirOwn) {
  void* a = host_memory().allocate(0, {});
  void* b = host_memory().allocate(0, {});
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
  host_memory().release(a, 0, {});
  host_memory().release(b, 0, {});
}

TEST(HostMemory, MoreThanThereIsIsAnErrorWithTheNumber) {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  // The second size would wrap when it is rounded up to the alignment.
  for (const std::size_t bytes : {most / 2, most, most - 63, most - 64})
    test::expect_error(Errc::resource_exhausted, {std::to_string(bytes)},
                       [&] { (void)host_memory().allocate(bytes, {}); });
}

TEST(HostMemory, CopiesBytesAndTakesNullForNone) {
  const std::vector<int> from{1, 2, 3};
  std::vector<int> to(3);
  host_memory().copy(to.data(), from.data(), sizeof(int) * 3, {});
  EXPECT_EQ(to, from);
  host_memory().copy(nullptr, nullptr, 0, {});
}

TEST(HostMemory, IsOneObjectOnTheHost) {
  EXPECT_EQ(&host_memory(), &host_memory());
  EXPECT_EQ(host_memory().device(), Device{});
}

}  // namespace
}  // namespace tutti
