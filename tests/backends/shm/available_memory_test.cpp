// The memory that a process may still allocate.

#include "memory/available_memory.hpp"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

/// A system whose figures the test writes.
class AvailableMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void write_host() const {
    write("proc/meminfo", "MemTotal:  9000000 kB\nMemFree: 5 kB\nMemAvailable:   102400 kB\n");
  }
  backend::memory::AvailableMemory found() const {
    return backend::memory::available_memory(root_.path());
  }

 private:
  TemporaryDirectory root_;
};

TEST_F(AvailableMemory, IsThatOfTheHost) {
  EXPECT_EQ(found().bytes, std::numeric_limits<std::uint64_t>::max());
  write_host();
  EXPECT_EQ(found().bytes, 100 * MiB);
  EXPECT_EQ(found().limit, "MemAvailable of the host");
}

TEST_F(AvailableMemory, IsTheLeastOfTheCgroupAndThoseAboveIt) {
  write_host();
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "1048576\n");
  EXPECT_EQ(found().bytes, 100 * MiB);
  write("sys/fs/cgroup/a/memory.max", std::to_string(50 * MiB) + "\n");
  write("sys/fs/cgroup/a/memory.current", std::to_string(30 * MiB) + "\n");
  EXPECT_EQ(found().bytes, 20 * MiB);
  EXPECT_TRUE(found().limit.ends_with("/a")) << found().limit;
  // The kernel frees the cache of files on demand.
  write("sys/fs/cgroup/a/memory.stat",
        "anon 1\ninactive_file 2097152\nactive_file 1048576\n"
        "slab_reclaimable 1048576\n");
  EXPECT_EQ(found().bytes, 24 * MiB);
  write("sys/fs/cgroup/a/memory.current", std::to_string(60 * MiB) + "\n");
  EXPECT_EQ(found().bytes, 0U);
}

TEST_F(AvailableMemory, IsReadFromVersionOneToo) {
  write_host();
  write("proc/self/cgroup", "5:cpu:/c\n4:memory:/a\n0::/\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(found().bytes, 100 * MiB);
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(40 * MiB) + "\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(30 * MiB) + "\n");
  write("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 1048576\ninactive_file 7\n");
  EXPECT_EQ(found().bytes, 11 * MiB);
}

TEST(AvailableMemoryHere, IsNotZero) {
  EXPECT_GT(backend::memory::available_memory().bytes, MiB);
}

}  // namespace
}  // namespace tutti::test
