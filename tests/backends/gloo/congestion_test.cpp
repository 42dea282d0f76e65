// The congestion control of connections. Ranks are processes.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rank_processes.hpp"

namespace tutti::test {
namespace {

using Counts = std::map<std::string, int>;

/// The number of descriptors of connected TCP sockets by their congestion control.
Counts congestion_controls() {
  Counts counts;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    std::array<char, 16> name{};
    auto length = static_cast<socklen_t>(name.size());
    sockaddr_storage peer{};
    socklen_t peer_length = sizeof peer;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
        ::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0)
      ++counts[name.data()];
  }
  return counts;
}

std::string congestion_control_of_system() {
  std::string name;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> name;
  return name;
}

void expect_usable(ProcessGroup& group) {
  std::vector<std::int32_t> data(100, group.rank() + 1);
  group.all_reduce(data);
  EXPECT_EQ(data, std::vector<std::int32_t>(100, group.size() * (group.size() + 1) / 2));
}

/// A connection has two descriptors: Gloo's own and the library's.
constexpr int descriptors_each = 2;

TEST(GlooCongestionControl, ConnectionsWithinTheHostUseReno) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    auto group = rank.make_group("usual");
    EXPECT_EQ(congestion_controls(), (Counts{{"reno", 2 * descriptors_each}}));
    expect_usable(group);
    rank.barrier();
    return std::string();
  });
}

/// Makes the kernel refuse the congestion control of a socket.
void refuse_congestion_control() {
  constexpr auto refusal = SECCOMP_RET_ERRNO | EPERM;
  constexpr auto allowed = SECCOMP_RET_ALLOW;
  // The lower half of an argument has this offset on little-endian machines.
  const auto argument = [](int number) {
    return static_cast<std::uint32_t>(offsetof(seccomp_data, args) +
                                      static_cast<std::size_t>(number) * sizeof(std::uint64_t));
  };
  std::array<sock_filter, 8> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(1)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(2)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TCP_CONGESTION, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, allowed),
      BPF_STMT(BPF_RET | BPF_K, refusal),
  }};
  const sock_fprog filter{static_cast<std::uint16_t>(program.size()), program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(GlooCongestionControl, AKernelThatRefusesItIsNoError) {
  const auto usual = congestion_control_of_system();
  on_processes({.size = 2}, [&](RankProcess& rank) {
    refuse_congestion_control();
    auto group = rank.make_group("refused");
    EXPECT_EQ(congestion_controls(), (Counts{{usual, descriptors_each}}));
    expect_usable(group);
    rank.barrier();
    return std::string();
  });
}

TEST(GlooCongestionControl, ConnectionsToAnotherHostKeepTheCongestionControlOfTheSystem) {
  const auto output = on_processes({.size = 2}, [&](RankProcess& rank) -> std::string {
    if (!rank.enter_own_network()) return "no network";
    auto group = rank.make_group("remote");
    EXPECT_EQ(congestion_controls(), (Counts{{congestion_control_of_system(), descriptors_each}}));
    expect_usable(group);
    rank.barrier();
    return {};
  });
  if (output[0] == "no network") GTEST_SKIP() << "network namespaces are not permitted here";
}

}  // namespace
}  // namespace tutti::test
