// A UCP worker alone. TCP stands for InfiniBand: a transport that reports ends.

#include "ucx/worker.hpp"

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

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

/// The sockets of this process that listen.
int listeners() {
  int found = 0;
  for (int descriptor = 0; descriptor < 1000; ++descriptor) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0)
      found += listens;
  }
  return found;
}

TEST(UcxWorker, ListensOnlyWithTcp) {
  const int before = listeners();
  const auto made = [](const std::string& list) {
    const Worker worker(
        backend::ucx::ucx_api(), 0, 2, {list}, [](LogLevel, std::string_view) {}, [](int) {});
    return listeners();
  };
  EXPECT_GT(made("tcp,self"), before);
  for (const char* list : {"^tcp", "^tcp,tcp", "^rc,tcp", "posix,sysv,self"})
    EXPECT_EQ(made(list), before) << list;
}

}  // namespace
}  // namespace tutti::test
