// Unauthenticated peers that connect during the rendezvous. They are processes, and so are the
// ranks.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rank_processes.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr int ranks = 3;

/// The TCP ports over IPv4 at which a process listens.
std::set<int> listening_ports(pid_t process) {
  std::set<std::string> sockets;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process), ignored)) {
    const auto target = fs::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  std::ifstream table(fmt::format("/proc/{}/net/tcp", process));
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word[10];
    for (auto& w : word) words >> w;
    constexpr const char* listens = "0A";
    if (word[3] == listens && sockets.contains(word[9]))
      ports.insert(std::stoi(word[1].substr(word[1].find(':') + 1), nullptr, 16));
  }
  return ports;
}

int connect_to(int port, const std::string& address) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  if (::connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return s;
  ::close(s);
  return -1;
}

struct UnauthenticatedPeer {
  std::string name;
  std::string says;      ///< Sent right after connecting.
  bool leaves = false;   ///< Closes the connection after that.
  bool returns = false;  ///< Tries every port that it sees, not only the first ones.
};

std::vector<UnauthenticatedPeer> unauthenticated_peers() {
  std::string opcodes(56, '\0');
  opcodes[8] = 1;
  std::string noise;
  for (int i = 0; i < 300; ++i) noise += static_cast<char>(i * 37 + 11);
  return {{"a port scan", "", true, false},
          {"a peer that holds the connection", "", false, false},
          {"a web browser", "GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nAccept: */*\r\n\r\n",
           false, false},
          {"zeros", std::string(56, '\0'), false, false},
          {"a frame", opcodes, false, false},
          {"all ones", std::string(56, '\xff'), false, false},
          {"noise", noise, true, false},
          {"a peer that never gives up", noise, true, true}};
}

/// Connects to the ports of the first two ranks, which wait for the third, and tells it to come.
void disturb(RankProcess& rank, const UnauthenticatedPeer& peer, int number) {
  std::set<int> tried;
  std::vector<int> held;
  const auto limit = Deadline::after(30s);
  const auto done = fmt::format("done/{}", number);
  while (rank.store().add(done, 0) < ranks && !limit.expired()) {
    for (int r = 0; r < ranks; ++r)
      for (const int port : listening_ports(rank.process(r))) {
        if (tried.contains(port)) continue;
        if (tried.size() >= 4 && !peer.returns) continue;
        const int s = connect_to(port, "127.0.0.1");
        if (s < 0) continue;
        tried.insert(port);
        (void)::send(s, peer.says.data(), peer.says.size(), MSG_NOSIGNAL);
        if (peer.leaves)
          ::close(s);
        else
          held.push_back(s);
        if (tried.size() == 4) rank.store().set(fmt::format("disturbed/{}", number), "");
      }
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_GE(tried.size(), 4U) << "no port to connect to";
  for (const int s : held) ::close(s);
}

void expect_to_cope_with(const UnauthenticatedPeer& peer, int number) {
  const auto output = on_processes({.size = ranks + 1}, [&](RankProcess& rank) -> std::string {
    if (rank.last()) {
      disturb(rank, peer, number);
      return "";
    }
    if (rank.rank() == ranks - 1)
      (void)rank.store().get(fmt::format("disturbed/{}", number), Deadline::after(10s));
    auto options = rank.options("group");
    options.backend = "gloo:=lo";
    options.size = ranks;
    options.timeout = 6s;
    const auto start = Clock::now();
    std::string text;
    bool up = true;
    try {
      auto group = ProcessGroup::create(options);
      std::vector<std::int32_t> data(3, 1);
      group.all_reduce(data);
      EXPECT_EQ(data, std::vector<std::int32_t>(3, ranks));
      group.barrier();
    } catch (const Error& error) {
      up = false;
      text = fmt::format(", {}: {}", name_of(error.code()), error.what());
      EXPECT_TRUE(peer.returns) << text;
    }
    rank.store().add(fmt::format("done/{}", number), 1);
    const auto took = std::chrono::duration<double>(Clock::now() - start).count();
    EXPECT_LT(took, 2 + 5 * patience());
    return fmt::format("{} after {:.2f} s{}", up ? "up" : "failed", took, text);
  });
  std::cout << peer.name << ": rank 0 " << output[0] << "\n";
}

class GlooUnauthenticated : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Some, GlooUnauthenticated, testing::Values(0, 2, 4));
INSTANTIATE_TEST_SUITE_P(Slow, GlooUnauthenticated, testing::Range(0, 8));

TEST_P(GlooUnauthenticated, NeitherEndARankNorTakeItsConnection) {
  expect_to_cope_with(unauthenticated_peers()[static_cast<std::size_t>(GetParam())], GetParam());
}

}  // namespace
}  // namespace tutti::test
