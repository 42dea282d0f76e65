// A UCP worker alone.

#include "ucx/worker.hpp"

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
    sender.send(sent, 0, Worker::tag_of(1, slot), &number, sizeof number);
    Worker::Request received;
    if (slot == 2) receiver->recv(received, 1, Worker::tag_of(1, 2), &number, sizeof number);
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

}  // namespace
}  // namespace tutti::test
