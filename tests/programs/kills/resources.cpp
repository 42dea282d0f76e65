#include "resources.hpp"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <tutti/deadline.hpp>

#include "../../backends/gloo/rank_processes.hpp"

namespace tutti::test {

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
