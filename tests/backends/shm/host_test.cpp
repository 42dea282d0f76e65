// The cores that ranks may use, and the ends of processes.

#include "shm/host.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

namespace shm = backend::shm;

class CgroupQuota : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::size_t quota(const std::string& own) const { return shm::cgroup_quota(root_.path(), own); }

 private:
  TemporaryDirectory root_;
};

constexpr auto unlimited = std::numeric_limits<std::size_t>::max();

TEST_F(CgroupQuota, IsTheLeastOfTheGroupAndThoseAboveIt) {
  write("a/b/cpu.max", "max 100000\n");
  write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 3U);
  write("a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 1U);
  EXPECT_EQ(quota("0::/\n"), unlimited);
  EXPECT_EQ(quota(""), unlimited);
}

TEST_F(CgroupQuota, IsReadFromVersionOneToo) {
  write("cpu,cpuacct/a/cpu.cfs_quota_us", "400000\n");
  write("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("12:memory:/a\n4:cpu,cpuacct:/a\n"), 4U);
  write("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota("4:cpu,cpuacct:/a\n"), unlimited);
}

TEST(CountCores, CountsEachCoreOnceAndKeepsToTheQuota) {
  EXPECT_EQ(shm::count_cores({{{0, 1}, unlimited}, {{1, 2}, unlimited}}), 3U);
  EXPECT_EQ(shm::count_cores({{{0, 1, 2, 3}, 2}, {{0, 1, 2, 3}, 2}}), 2U);
}

TEST(UsableCores, AreThoseOfTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const auto all = shm::usable_cores();
  EXPECT_EQ(all.list.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.list.front()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(shm::usable_cores().list, std::vector{all.list.front()});
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST(ProcessDescriptor, BecomesReadableWhenTheProcessEnds) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    [[maybe_unused]] const auto n = ::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  const auto process = shm::process_descriptor(child);
  ASSERT_TRUE(process.is_open());
  pollfd event{process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(::poll(&event, 1, 10'000), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(shm::process_descriptor(child).is_open());
}

}  // namespace
}  // namespace tutti::test
