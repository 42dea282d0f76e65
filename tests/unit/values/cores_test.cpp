// The cores that ranks may use.

#include "values/cores.hpp"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

class CgroupQuota : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::size_t quota(const std::string& own) const {
    return internal::cgroup_quota(root_.path(), own);
  }

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
  EXPECT_EQ(internal::count_cores({{{0, 1}, unlimited}, {{1, 2}, unlimited}}), 3U);
  EXPECT_EQ(internal::count_cores({{{0, 1, 2, 3}, 2}, {{0, 1, 2, 3}, 2}}), 2U);
}

TEST(UsableCores, AreThoseOfTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const auto all = internal::usable_cores();
  EXPECT_EQ(all.list.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.list.front()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(internal::usable_cores().list, std::vector{all.list.front()});
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST(Cores, AreTheSameAfterTheExchange) {
  const internal::Cores cores{{0, 5, 70}, 3};
  internal::Writer out;
  write(out, cores);
  const auto bytes = out.take();
  internal::Reader in(bytes, Errc::backend, "cores");
  const auto read = internal::read_cores(in);
  in.end();
  EXPECT_EQ(read.list, cores.list);
  EXPECT_EQ(read.quota, cores.quota);
}

}  // namespace
}  // namespace tutti::test
