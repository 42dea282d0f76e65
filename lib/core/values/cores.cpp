#include "values/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

namespace tutti::internal {
namespace {

constexpr auto unlimited = std::numeric_limits<std::size_t>::max();

/// Rounds up, because a rank that is throttled for a part of the time still runs at once otherwise.
std::size_t in_cores(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return unlimited;
  return std::max<std::size_t>(1, static_cast<std::size_t>((quota + period - 1) / period));
}

/// The limit of one directory of version 2, or of version 1.
std::size_t limit_of(const std::string& directory) {
  double quota = 0;
  double period = 0;
  // "max 100000" has no number at its beginning, so nothing is read.
  if (std::ifstream(directory + "/cpu.max") >> quota >> period) return in_cores(quota, period);
  std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  return in_cores(quota, period);
}

}  // namespace

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // Otherwise lack of memory cuts off the text.
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void for_each_cgroup(const std::string& root, const std::string& own, const std::string& controller,
                     const std::function<void(const std::string& directory)>& visit) {
  std::istringstream lines(own);
  for (std::string line; std::getline(lines, line);) {
    // "hierarchy:controllers:path"; version 2 has no controllers.
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() &&
        ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    const auto top = controllers.empty() ? root : root + "/" + controllers;
    auto path = line.substr(second + 1);
    while (!path.empty() && path != "/") {
      visit(top + path);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    visit(top);
  }
}

std::size_t cgroup_quota(const std::string& root, const std::string& own) {
  std::size_t least = unlimited;
  for_each_cgroup(root, own, "cpu", [&](const std::string& directory) {
    least = std::min(least, limit_of(directory));
  });
  return least;
}

Cores usable_cores() {
  Cores cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(static_cast<std::size_t>(i), &mask)) cores.list.push_back(i);
  } else {  // More cores than the mask has bits.
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i)
      cores.list.push_back(static_cast<int>(i));
  }
  cores.quota = cgroup_quota("/sys/fs/cgroup", text_of("/proc/self/cgroup"));
  return cores;
}

std::size_t count_cores(const std::vector<Cores>& processes) {
  std::set<int> all;
  std::size_t quota = unlimited;  // Of one cgroup, which the processes usually share.
  for (const auto& process : processes) {
    all.insert(process.list.begin(), process.list.end());
    quota = std::min(quota, process.quota);
  }
  return std::min(all.size(), quota);
}

void write(Writer& out, const Cores& cores) {
  const std::vector<std::int64_t> list(cores.list.begin(), cores.list.end());
  out.u64(cores.quota).list(list);
}

Cores read_cores(Reader& in) {
  Cores cores;
  cores.quota = in.u64();
  for (const auto core : in.list()) cores.list.push_back(static_cast<int>(core));
  return cores;
}

}  // namespace tutti::internal
