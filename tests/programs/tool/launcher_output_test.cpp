#include "run/output.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

/// The output for these pieces, and for the end of the stream.
std::string prefixed(std::initializer_list<std::string_view> pieces) {
  Prefixer lines("[7] ");
  std::string out;
  for (const auto piece : pieces) lines.take(piece, out);
  lines.finish(out);
  return out;
}

TEST(Prefixer, EveryLineGetsThePrefixHoweverItComes) {
  EXPECT_EQ(prefixed({"one\ntwo\n"}), "[7] one\n[7] two\n");
  EXPECT_EQ(prefixed({"o", "ne", "\nt", "wo\n"}), "[7] one\n[7] two\n");
  EXPECT_EQ(prefixed({"\n", "\n\n"}), "[7] \n[7] \n[7] \n");
  EXPECT_EQ(prefixed({}), "");
  EXPECT_EQ(prefixed({"", ""}), "");
}

TEST(Prefixer, APartOfALineWaitsForItsEnd) {
  Prefixer lines("[7] ");
  std::string out;
  lines.take("one\ntw", out);
  EXPECT_EQ(out, "[7] one\n");
  lines.take("o\n", out);
  EXPECT_EQ(out, "[7] one\n[7] two\n");
}

TEST(Prefixer, TheLastLineGetsTheNewlineThatItLacks) {
  EXPECT_EQ(prefixed({"one\ntwo"}), "[7] one\n[7] two\n");
}

TEST(Prefixer, ZeroBytesAndReturnsAreBytesLikeOthers) {
  using namespace std::string_view_literals;
  EXPECT_EQ(prefixed({"a\0b\rc\n"sv}), "[7] a\0b\rc\n"sv);
}

TEST(Prefixer, ALineOfTheGreatestLengthIsNotCutAndALongerOneIs) {
  const std::string most(Prefixer::longest_line, 'x');
  EXPECT_EQ(prefixed({most, "\n"}), "[7] " + most + "\n");
  EXPECT_EQ(prefixed({most + "\n"}), "[7] " + most + "\n");
  EXPECT_EQ(prefixed({most + "y\n"}), "[7] " + most + "\n[7] y\n");
  EXPECT_EQ(prefixed({"x" + most, "y"}), "[7] " + most + "\n[7] xy\n");
  EXPECT_EQ(prefixed({most + most + "\n"}), "[7] " + most + "\n[7] " + most + "\n");
}

class SinkTest : public testing::Test {
 protected:
  SinkTest() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~SinkTest() override {
    for (const int end : ends_)
      if (end >= 0) ::close(end);
  }
  void close(int& end) {
    ::close(end);
    end = -1;
  }
  std::array<int, 2> ends_{-1, -1};
};

TEST_F(SinkTest, WritesWhatWaitsInOrderAndSmallEnoughForAPipe) {
  Sink sink(ends_[1]);
  std::string all;
  for (int i = 0; i < 10000; ++i) all += std::to_string(i) + "\n";
  sink.waiting() += all;
  std::string got;
  while (!sink.empty()) {
    sink.write_some();
    std::array<char, 8192> part;
    const auto n = ::read(ends_[0], part.data(), part.size());
    ASSERT_GT(n, 0);
    ASSERT_LE(n, 4096);
    got.append(part.data(), static_cast<std::size_t>(n));
  }
  EXPECT_EQ(got, all);
  EXPECT_EQ(sink.waiting(), "") << "what is written takes no memory";
}

TEST_F(SinkTest, IsFullWhenMuchWaits) {
  Sink sink(ends_[1]);
  sink.waiting().assign(std::size_t{1} << 20, 'x');
  EXPECT_FALSE(sink.full());
  sink.waiting() += 'x';
  EXPECT_TRUE(sink.full());
  sink.write_some();
  EXPECT_FALSE(sink.full());
}

TEST_F(SinkTest, IsBrokenWhenTheReaderHasGone) {
  // As in launch(): the write fails instead of ending this process.
  const auto old = ::signal(SIGPIPE, SIG_IGN);
  Sink sink(ends_[1]);
  close(ends_[0]);
  sink.waiting() += "text";
  sink.write_some();
  EXPECT_TRUE(sink.broken());
  EXPECT_TRUE(sink.empty());
  ::signal(SIGPIPE, old);
}

}  // namespace
}  // namespace tutti::tool
