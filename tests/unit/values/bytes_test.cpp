#include "values/bytes.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using tutti::Errc;
using tutti::Error;
using tutti::internal::Reader;
using tutti::internal::Writer;

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();

Reader reader_of(std::span<const std::byte> bytes) {
  return {bytes, Errc::mismatch, "the message"};
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const auto byte : bytes)
    for (const int shift : {4, 0})
      text += "0123456789abcdef"[(std::to_integer<unsigned>(byte) >> shift) & 0xfU];
  return text;
}

/// The message of the Error that `read` throws; checks that it has the reader's code.
template <typename Read>
std::string error_of(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::mismatch);
    return error.message();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

Writer all_kinds() {
  Writer out;
  out.u8(0xfe).u16(0xfedc).u32(0xfedcba98).u64(0xfedcba9876543210).i32(-2).i64(lowest).f64(-1.5);
  out.text("text").block({}).list(std::array<std::int64_t, 2>{-1, 7}).raw("raw");
  out.numbers(std::vector<double>{0.5}).numbers(std::vector<std::uint8_t>{1, 2});
  return out;
}

void read_all_kinds(Reader in) {
  EXPECT_EQ(in.u8(), 0xfe);
  EXPECT_EQ(in.u16(), 0xfedc);
  EXPECT_EQ(in.u32(), 0xfedcba98U);
  EXPECT_EQ(in.u64(), 0xfedcba9876543210U);
  EXPECT_EQ(in.i32(), -2);
  EXPECT_EQ(in.i64(), lowest);
  EXPECT_EQ(in.f64(), -1.5);
  EXPECT_EQ(in.text(), "text");
  EXPECT_TRUE(in.block().empty());
  EXPECT_EQ(in.list(), (std::vector<std::int64_t>{-1, 7}));
  EXPECT_EQ(hex(in.raw(3)), "726177");
  EXPECT_EQ(in.numbers<double>(1), std::vector{0.5});
  EXPECT_EQ(in.numbers<std::uint8_t>(2), (std::vector<std::uint8_t>{1, 2}));
  in.end();
}

TEST(Bytes, AWriterIsLittleEndianWithoutPadding) {
  Writer out;
  out.u8(1).u16(0x0203).u32(0x04050607).i32(-2).f64(1);
  EXPECT_EQ(hex(out.bytes()),
            "01"
            "0302"
            "07060504"
            "feffffff"
            "000000000000f03f");
  EXPECT_EQ(hex(Writer().u64(1).i64(-1).bytes()),
            "0100000000000000"
            "ffffffffffffffff");
  EXPECT_EQ(hex(Writer().text("ab").list(std::array{std::int64_t{2}}).bytes()),
            "02000000"
            "6162"
            "01000000"
            "0200000000000000");
}

TEST(Bytes, AReaderReturnsWhatWasWritten) {
  read_all_kinds(reader_of(all_kinds().bytes()));
  const std::string text(all_kinds().view());
  read_all_kinds(Reader(text, Errc::mismatch, "the message"));
}

TEST(Bytes, FloatsKeepTheirBits) {
  const auto nan = std::bit_cast<double>(0x7ff4000000000123U);
  const auto bytes = Writer().f64(nan).f64(-0.0).take();
  auto in = reader_of(bytes);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(in.f64()), 0x7ff4000000000123U);
  EXPECT_TRUE(std::signbit(in.f64()));
}

TEST(Bytes, EveryTruncationIsAnError) {
  const auto bytes = all_kinds().take();
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_NE(error_of([&] {
                read_all_kinds(reader_of(std::span(bytes).first(n)));
              }).find("the message is too short"),
              std::string::npos)
        << n;
}

TEST(Bytes, AnErrorNamesTheMessageAndBothSizes) {
  const auto bytes = Writer().u16(0).u8(0).take();
  EXPECT_EQ(error_of([&] { reader_of(bytes).u32(); }),
            "the message is too short: it needs 1 items of 4 bytes, 3 bytes are left");
  EXPECT_EQ(error_of([&] { reader_of(bytes).end(); }), "the message has 3 bytes too many");
}

TEST(Bytes, ACountThatWouldOverflowIsAnError) {
  const auto bytes = Writer().u64(0).u64(0).take();
  for (const auto count : {std::numeric_limits<std::uint64_t>::max(),
                           (std::numeric_limits<std::uint64_t>::max() >> 3) + 1,  // Times 8: 0.
                           std::uint64_t{3}})
    error_of([&] { reader_of(bytes).numbers<std::int64_t>(count); });
  error_of([&] { reader_of(bytes).raw(std::numeric_limits<std::uint64_t>::max()); });
  EXPECT_EQ(reader_of(bytes).numbers<std::int64_t>(2).size(), 2U);
}

TEST(Bytes, ALengthThatLiesAllocatesNothing) {
  const auto bytes = Writer().u32(0xffffffff).u8(1).take();
  error_of([&] { reader_of(bytes).text(); });
  error_of([&] { reader_of(bytes).block(); });
  error_of([&] { reader_of(bytes).list(); });
}

TEST(Bytes, AReadThatFailsTakesNothing) {
  const auto bytes = Writer().u16(7).take();
  auto in = reader_of(bytes);
  error_of([&] { in.u32(); });
  EXPECT_EQ(in.left(), 2U);
  EXPECT_EQ(in.u16(), 7);
  in.end();
}

TEST(Bytes, RandomBytesAreReadOrRefused) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % (round % 2 == 0 ? 4 : 256));
    auto in = reader_of(bytes);
    try {
      while (in.left() != 0) {
        const auto before = in.left();
        switch (random() % 4) {
          case 0:
            EXPECT_LE(in.text().size() + 4, before);
            break;
          case 1:
            EXPECT_LE(in.list().size() * 8 + 4, before);
            break;
          case 2:
            in.u16();
            break;
          default:
            in.f64();
        }
        EXPECT_LT(in.left(), before);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::mismatch);
    }
  }
}

}  // namespace
