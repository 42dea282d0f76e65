// The ring of frames between two ranks.

#include "shm/ring.hpp"

#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

using namespace backend::shm;
using State = RingReceiver::State;

constexpr std::size_t capacity = 1024;

class Ring : public testing::Test {
 protected:
  struct alignas(cache_line) Memory {
    SharedRing shared{};
    std::array<std::byte, capacity> data{};
  };
  void push(const std::string& text) {
    sender_.push({.kind = Frame::Kind::data, .id = text.size(), .payload = text.size()},
                 text.data());
  }
  std::string pop() {
    Frame frame;
    if (receiver_.next(frame) != State::frame) return "no frame";
    std::string text(frame.payload, ' ');
    receiver_.read(frame, text.data());
    EXPECT_EQ(frame.id, text.size());
    receiver_.pop(frame);
    return text;
  }
  State next() {
    Frame frame;
    return receiver_.next(frame);
  }

  Memory memory_;
  RingSender sender_{memory_.shared, capacity};
  RingReceiver receiver_{memory_.shared, capacity};
};

TEST_F(Ring, KeepsOrderAndContentRoundItsEnd) {
  EXPECT_EQ(next(), State::empty);
  for (int i = 0; i < 200; ++i) {
    const std::string text(static_cast<std::size_t>(i * 37 % 400), static_cast<char>('a' + i % 26));
    ASSERT_GE(sender_.room().value(), text.size());
    push(text);
    push("second");
    EXPECT_EQ(pop(), text);
    EXPECT_EQ(pop(), "second");
  }
  EXPECT_EQ(next(), State::empty);
}

TEST_F(Ring, HasRoomForWhatIsNotRead) {
  EXPECT_EQ(sender_.room(), capacity - sizeof(Frame));
  push(std::string(capacity - sizeof(Frame), 'x'));
  EXPECT_EQ(sender_.room(), 0U);
  EXPECT_EQ(pop(), std::string(capacity - sizeof(Frame), 'x'));
  EXPECT_EQ(sender_.room(), capacity - sizeof(Frame));
}

TEST_F(Ring, NumbersOfASenderThatIsWrongAreFound) {
  push("text");
  memory_.shared.head = sizeof(Frame) - 1;
  EXPECT_EQ(next(), State::corrupt);
  memory_.shared.head = capacity + 1;
  EXPECT_EQ(next(), State::corrupt);
  memory_.shared.head = ~std::uint64_t{0};
  EXPECT_EQ(next(), State::corrupt);
  memory_.shared.head = 2 * sizeof(Frame);
  EXPECT_EQ(next(), State::frame);
  for (const std::uint64_t payload :
       {std::uint64_t{65}, std::uint64_t{capacity}, ~std::uint64_t{0}}) {
    std::memcpy(memory_.data.data() + offsetof(Frame, payload), &payload, sizeof payload);
    EXPECT_EQ(next(), State::corrupt) << payload;
  }
}

TEST_F(Ring, ATailThatIsWrongIsFound) {
  memory_.shared.tail = 5;
  EXPECT_EQ(sender_.room(), std::nullopt);
}

TEST_F(Ring, CarriesFramesBetweenThreads) {
  constexpr int count = 20'000;
  std::thread sending([&] {
    for (int i = 0; i < count; ++i) {
      const std::string text(static_cast<std::size_t>(i % 300), static_cast<char>(i % 128));
      while (sender_.room().value() < std::max<std::size_t>(text.size(), 1))
        std::this_thread::yield();
      push(text);
    }
  });
  for (int i = 0; i < count;) {
    if (next() == State::empty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(pop(), std::string(static_cast<std::size_t>(i % 300), static_cast<char>(i % 128)));
    ++i;
  }
  sending.join();
}

}  // namespace
}  // namespace tutti::test
