// A UCP worker alone, and its gate.

#include "ucx/worker.hpp"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mesh/segment_filter.hpp"
#include "support/sanitizers.hpp"
#include "ucx/gate.hpp"

namespace tutti::test {
namespace {

using backend::ucx::Worker;
using namespace std::chrono_literals;

// UCX warns of messages that have not been received when the worker is closed.
TEST(UcxWorker, TheLoggerMayUseTheWorker) {
  std::vector<std::string> lines;
  std::unique_ptr<Worker> receiver;
  const auto logger = [&](LogLevel, std::string_view text) {
    lines.emplace_back(text);
    receiver->alert();
    receiver->close();
  };
  const auto& api = backend::ucx::ucx_api();
  Worker sender(
      api, 1, 2, {"tcp,self"}, [](LogLevel, std::string_view) {}, [](int) {});
  receiver =
      std::make_unique<Worker>(api, 0, 2, backend::ucx::Transports{"tcp,self"}, logger, [](int) {});
  sender.connect(0, receiver->address());
  receiver->connect(1, sender.address());
  int number = 7;
  for (const std::uint64_t slot : {1U, 2U}) {
    Worker::Request sent;
    sender.send(sent, 0, slot, &number, sizeof number, true);
    Worker::Request received;
    if (slot == 2) receiver->recv(received, 1, 2, &number, sizeof number);
    for (int i = 0; i < 100 && !(sent.ended && received.ended); ++i) {
      sender.attend(1ms);
      receiver->attend(10ms);
    }
    EXPECT_TRUE(sent.ended);
    EXPECT_TRUE(received.ended);
  }
  receiver->close();
  EXPECT_FALSE(lines.empty());
}

/// Makes a worker and its gate; `then` is called when UCX listens. Returns the error.
std::string error_of_gate(const std::string& list, const std::function<void()>& then) {
  const auto& api = backend::ucx::ucx_api();
  const backend::ucx::Transports transports{list};
  std::unique_ptr<Worker> worker;
  try {
    const backend::ucx::Gate gate(transports, [&] {
      worker = std::make_unique<Worker>(
          api, 0, 2, transports, [](LogLevel, std::string_view) {}, [](int) {});
      then();
    });
    return gate.listeners().empty() ? "no listeners" : "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::unsupported);
    return error.what();
  }
}

TEST(UcxGate, RefusesListenersThatItCannotFilter) {
  EXPECT_EQ(error_of_gate("tcp,self", [] {}), "");
  const auto lock_filters = [] {
    const int yes = 1;
    for (const int descriptor : backend::mesh::descriptors_of_process())
      ::setsockopt(descriptor, SOL_SOCKET, SO_LOCK_FILTER, &yes, sizeof yes);
  };
  EXPECT_NE(error_of_gate("tcp,self", lock_filters).find("cannot filter"), std::string::npos);
  if (address_sanitizer) return;  // UBSan's checks of types need descriptors.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto hide_descriptors = [&] {  // None is free to read /proc with.
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  };
  for (const std::string list : {"tcp,self", "posix,self"}) {
    const auto error = error_of_gate(list, hide_descriptors);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    if (list == "tcp,self")
      EXPECT_NE(error.find("does not show"), std::string::npos) << error;
    else
      EXPECT_EQ(error, "no listeners");
  }
}

/// Listens on a port of the loopback interface. Clients are not accepted.
struct Listener {
  Listener() : descriptor(::socket(AF_INET, SOCK_STREAM, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(descriptor, end(), sizeof address), 0);
    EXPECT_EQ(::listen(descriptor, 1000), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(descriptor, end(), &length), 0);
  }
  ~Listener() { ::close(descriptor); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  sockaddr* end() { return reinterpret_cast<sockaddr*>(&address); }

  int descriptor;
  sockaddr_in address{};
};
std::string text_of(const sockaddr_in& address) {
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

// Ranks that are threads look at each other's sockets while these connect, and while others take
// the numbers of their descriptors.
TEST(UcxGate, FindsOnlyConnectionsToTheListeners) {
  Listener wanted;
  Listener other;
  std::set<std::string> made;
  std::atomic<bool> done{false};
  std::thread connecting([&] {
    for (bool odd = false; !done; odd = !odd) {
      auto& to = odd ? other : wanted;
      const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
      EXPECT_EQ(::connect(descriptor, to.end(), sizeof to.address), 0);
      sockaddr_in own{};
      socklen_t length = sizeof own;
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length);
      if (!odd) made.insert(text_of(own));
      ::close(::accept(to.descriptor, nullptr, nullptr));
      ::close(descriptor);
    }
  });
  std::set<std::string> found;
  for (int i = 0; i < 20'000; ++i)
    for (const auto& [rank, own_ends] :
         backend::ucx::Gate::connected_to({{text_of(wanted.address), 1}}))
      found.insert(own_ends.begin(), own_ends.end());
  done = true;
  connecting.join();
  EXPECT_FALSE(found.empty());
  for (const auto& own : found) EXPECT_TRUE(made.contains(own)) << own;
}

}  // namespace
}  // namespace tutti::test
