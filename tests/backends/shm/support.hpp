#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

#include "../gloo/rank_processes.hpp"
#include "support/ranks.hpp"
#include "support/store_over.hpp"
#include "support/worlds.hpp"

namespace tutti::test {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

inline double since(Clock::time_point start) {
  return Milliseconds(Clock::now() - start).count();
}

inline GroupOptions options_of(const RankProcess& rank, const std::string& name) {
  auto options = rank.options(name);
  options.backend = "shm";
  return options;
}

inline void expect_sums(ProcessGroup& group, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<std::int32_t>(i % 1009) * (group.rank() + 1);
  group.all_reduce(data);
  const int n = group.size();
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(data[i], static_cast<std::int32_t>(i % 1009) * (n * (n + 1) / 2)) << "element " << i;
}

/// The mappings of this process whose line in /proc/self/maps has this text.
inline std::size_t mappings_of(std::string_view text) {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(text) != std::string::npos;
  return found;
}

/// Makes a system call fail in this process, as a container may. False if that is not permitted.
inline bool forbid(unsigned int system_call) {
  std::array filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// The resources that a group holds.
struct Held {
  std::size_t descriptors = holdings().descriptors;
  std::size_t threads = holdings().threads;
  std::size_t mappings = mappings_of("memfd:tutti");
  bool operator==(const Held&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Held& held) {
    return out << held.descriptors << " descriptors, " << held.threads << " threads, "
               << held.mappings << " mappings";
  }
};

}  // namespace tutti::test
