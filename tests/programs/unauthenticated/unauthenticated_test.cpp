// Unauthenticated peers that connect to the ports of the ranks: while a group is made, and to a
// group that is up. They are processes, and so are the ranks.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../../backends/gloo/rank_processes.hpp"
#include "../kills/backends.hpp"
#include "support/scoped_variables.hpp"
#include "support/store_over.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr int ranks = 3;

/// An IPv4 address and a port, both in the order of the network.
using Port = std::pair<std::uint32_t, std::uint16_t>;

/// The TCP ports over IPv4 at which a process listens.
std::set<Port> listening_ports(pid_t process) {
  std::set<std::string> sockets;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process), ignored)) {
    const auto target = fs::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<Port> ports;
  std::ifstream table(fmt::format("/proc/{}/net/tcp", process));
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word[10];
    for (auto& w : word) words >> w;
    constexpr const char* listens = "0A";
    if (word[3] != listens || !sockets.contains(word[9])) continue;
    const auto colon = word[1].find(':');
    ports.emplace(
        static_cast<std::uint32_t>(std::stoul(word[1].substr(0, colon), nullptr, 16)),
        htons(static_cast<std::uint16_t>(std::stoul(word[1].substr(colon + 1), nullptr, 16))));
  }
  return ports;
}

/// Returns -1 if nothing answers.
int connect_to(const Port& port) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
  ::setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = port.first;
  to.sin_port = port.second;
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
          {"a frame of Gloo", opcodes, false, false},
          {"all ones", std::string(56, '\xff'), false, false},
          {"noise", noise, true, false},
          {"a peer that never gives up", noise, true, true}};
}

/// The ranks and their backend.
struct Job {
  std::string backend;
  const char* hosts = nullptr;  ///< TUTTI_HOSTS.
  std::string waits_for{};      ///< Part of a key of the store; see LateStore.
  int late = 0;                 ///< The rank with that store.
  std::size_t ports = 0;        ///< The other ranks listen at so many by then; 0: never at any.
};

bool is_over_gloo(const Job& job) {
  return job.backend.find("gloo") != job.backend.npos;
}

/// Makes a rank wait for unauthenticated peers before it writes a key. Its peers listen by then.
class LateStore final : public StoreOver {
 public:
  LateStore(std::shared_ptr<Store> base, RankProcess& rank, std::string key)
      : StoreOver(std::move(base)), rank_(rank), key_(std::move(key)) {}

 private:
  void seen(std::string_view key, bool written) override {
    if (written && key.find(key_) != key.npos)
      (void)rank_.files()->get("disturbed", Deadline::after(10s));
  }
  RankProcess& rank_;
  std::string key_;
};

/// Talks to the ports of the ranks while they make the group, and then tells the late rank to come.
/// Then nothing answers at any port.
void disturb(RankProcess& rank, const std::vector<UnauthenticatedPeer>& peers, const Job& job) {
  std::set<Port> tried;
  std::vector<int> held;
  auto& store = *rank.files();
  const auto limit = Deadline::after(30s);
  if (job.ports == 0) store.set("disturbed", "");
  const auto ports = [&] {
    std::set<Port> all;
    for (int r = 0; r < ranks; ++r) all.merge(listening_ports(rank.process(r)));
    return all;
  };
  while (store.add("up", 0) < ranks && !limit.expired()) {
    for (const auto& port : ports()) {
      bool answers = false;
      for (const auto& peer : peers) {
        if (tried.contains(port) || (job.ports > 0 && tried.size() >= job.ports))
          if (!peer.returns) continue;
        const int s = connect_to(port);
        if (s < 0) break;
        answers = true;
        (void)::send(s, peer.says.data(), peer.says.size(), MSG_NOSIGNAL);
        if (peer.leaves)
          ::close(s);
        else
          held.push_back(s);
      }
      if (answers && tried.insert(port).second && tried.size() == job.ports)
        store.set("disturbed", "");
    }
    std::this_thread::sleep_for(1ms);
  }
  const auto last = ports();
  if (job.ports > 0)
    EXPECT_GE(tried.size(), job.ports) << "no port to connect to";
  else
    EXPECT_TRUE(tried.empty() && last.empty()) << "a port to connect to";
  for (const auto& port : last) {
    const int s = connect_to(port);
    EXPECT_LT(s, 0) << "port " << ntohs(port.second) << " answers";
    if (s >= 0) held.push_back(s);
  }
  store.set("scanned", "");
  for (const int s : held) ::close(s);
}

void expect_to_cope_with(const Job& job, const std::vector<UnauthenticatedPeer>& peers) {
  const auto output = on_processes({.size = ranks + 1}, [&](RankProcess& rank) -> std::string {
    const ScopedVariables hosts{{"TUTTI_HOSTS", job.hosts}};
    if (rank.last()) {
      disturb(rank, peers, job);
      return "";
    }
    auto options = rank.options("group");
    options.backend = job.backend;
    options.size = ranks;
    options.timeout = 6s;
    if (rank.rank() == job.late && job.ports > 0)
      options.store = std::make_shared<LateStore>(options.store, rank, job.waits_for);
    const auto start = Clock::now();
    std::string text;
    bool up = true;
    try {
      auto group = ProcessGroup::create(options);
      rank.files()->add("up", 1);
      for (std::vector<std::int32_t> data; data != std::vector<std::int32_t>(3, 0);) {
        data.assign(3, 1);
        group.all_reduce(data);
        EXPECT_EQ(data, std::vector<std::int32_t>(3, ranks));
        data.assign(3, rank.files()->try_get("scanned") ? 0 : 1);
        group.broadcast(data, 0);
      }
    } catch (const Error& error) {
      up = false;
      text = fmt::format(", {}: {}", name_of(error.code()), error.what());
      EXPECT_TRUE(is_over_gloo(job) && text.find("another program has connected") != text.npos)
          << text;
      rank.files()->add("up", 1);
    }
    const auto took = std::chrono::duration<double>(Clock::now() - start).count();
    EXPECT_LT(took, 2 + 5 * patience());
    return fmt::format("{} after {:.2f} s{}", up ? "up" : "failed", took, text);
  });
  std::cout << job.backend << ", " << (peers.size() == 1 ? peers[0].name : "all peers")
            << ": rank 0 " << output[0] << "\n";
}

bool is_here(const std::string& backend) {
  const auto all = backends_between_processes();
  return std::ranges::find(all, backend.substr(0, backend.find(":="))) != all.end();
}

const std::vector<Job>& jobs() {
  static const std::vector<Job> all{
      {"gloo:=lo", nullptr, "gloo/address", 2, 4},
      {"ucx:shm"},
      {"hier:shm+gloo", "a,b,a", "gloo/address", 1, 1},
      {"shm"},
      {"tcp:=lo", nullptr, "tcp/address", 2, 2},
      {"hier:shm+tcp", "a,b,a", "tcp/address", 1, 1},
  };
  return all;
}

constexpr std::size_t peers_alone = 8;  // The last case is all peers, one after the other.

/// "hiershmtcp_two_hosts_all".
std::string name_of_case(const testing::TestParamInfo<std::tuple<std::size_t, std::size_t>>& of) {
  const auto& [number, peer] = of.param;
  const auto& job = jobs()[number];
  auto name = fmt::format("{}{}_{}", job.backend, job.hosts == nullptr ? "" : "_two_hosts",
                          peer == peers_alone ? "all" : std::to_string(peer));
  std::erase_if(name, [](char c) { return c == ':' || c == '+' || c == '='; });
  return name;
}

/// The number of the job, and of the peer.
class Unauthenticated : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

using Case = std::tuple<std::size_t, std::size_t>;
INSTANTIATE_TEST_SUITE_P(Some, Unauthenticated,
                         testing::Values(Case(0, 0), Case(0, 1), Case(1, 6), Case(2, peers_alone),
                                         Case(3, 6), Case(4, 0), Case(4, 6), Case(4, peers_alone),
                                         Case(5, peers_alone)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Slow, Unauthenticated,
                         testing::Combine(testing::Range<std::size_t>(0, jobs().size()),
                                          testing::Range<std::size_t>(0, peers_alone + 1)),
                         name_of_case);

TEST_P(Unauthenticated, PeersNeitherEndARankNorTakeItsConnection) {
  const auto& [number, peer] = GetParam();
  const auto& job = jobs()[number];
  if (!is_here(job.backend)) GTEST_SKIP() << "no " << job.backend << " here";
  auto peers = unauthenticated_peers();
  if (peer < peers_alone) peers = {peers[peer]};
  // Gloo trusts what it reads: bytes can end the process. A peer without any may cost the group.
  if (is_over_gloo(job)) std::erase_if(peers, [](const auto& p) { return !p.says.empty(); });
  if (peers.empty()) GTEST_SKIP() << "Gloo follows what this peer sends";
  expect_to_cope_with(job, peers);
}

}  // namespace
}  // namespace tutti::test
