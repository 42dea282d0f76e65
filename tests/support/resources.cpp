#include "support/resources.hpp"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

#include <tutti/deadline.hpp>

namespace tutti::test {

using namespace std::chrono_literals;

Holdings holdings() {
  Holdings now;
  using Entries = std::filesystem::directory_iterator;
  // The count always includes the iterator's own descriptor.
  now.descriptors = static_cast<std::size_t>(std::distance(Entries("/proc/self/fd"), Entries()));
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> now.threads;
    if (word == "VmRSS:") status >> now.resident_kib;
  }
  return now;
}

Resources Resources::now() {
  std::ifstream maps("/proc/self/maps");
  const auto lines = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  const auto held = holdings();
  return {held.threads, held.descriptors, static_cast<std::size_t>(lines)};
}

Resources Resources::settled() {
  auto last = now();
  for (int same = 0; same < 4; ++same) {
    std::this_thread::sleep_for(10ms);
    const auto next = now();
    if (next != last) same = 0;
    last = next;
  }
  return last;
}

Resources Resources::await(const Resources& before, std::chrono::nanoseconds limit) {
  const auto end = Deadline::after(limit);
  auto last = now();
  while (!last.fit(before) && !end.expired()) {
    std::this_thread::sleep_for(5ms);
    last = now();
  }
  return last;
}

Resources Resources::but_mappings() const noexcept {
  return {threads, descriptors, std::numeric_limits<std::size_t>::max() - spare_mappings};
}

bool Resources::fit(const Resources& before) const noexcept {
  return threads <= before.threads && descriptors <= before.descriptors &&
         mappings <= before.mappings + spare_mappings;
}

std::ostream& operator<<(std::ostream& out, const Resources& r) {
  return out << r.threads << " threads, " << r.descriptors << " descriptors, " << r.mappings
             << " mappings";
}

void use_one_heap() {
  (void)::mallopt(M_ARENA_MAX, 1);
}

}  // namespace tutti::test
