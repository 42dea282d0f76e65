#include <tutti/format.hpp>

#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/tutti.hpp>

namespace tutti {
namespace {

template <typename T>
void expect_printed(const T& value, const std::string& text) {
  std::ostringstream out;
  out << value;
  EXPECT_EQ(out.str(), text);
  EXPECT_EQ(format_as(value), text);
#if FMT_VERSION >= 100000
  EXPECT_EQ(fmt::format("{}", value), text);
#endif
}

TEST(Format, ValuesHaveTheirNamesInStreamsAndInFmt) {
  expect_printed(DType::bf16, "bf16");
  expect_printed(Operation::all_reduce, "all_reduce");
  expect_printed(ReduceOp::avg, "avg");
  expect_printed(ReduceOp::Kind::premul_sum, "premul_sum");
  expect_printed(Errc::peer_lost, "peer_lost");
  expect_printed(Device{DeviceType::cuda, 1}, "cuda:1");
  expect_printed(Shape{2, 3}, "[2, 3]");
  expect_printed(RowLayout(std::vector<std::int64_t>{3, 0, 5}), "{3, 0, 5}");
}

}  // namespace
}  // namespace tutti
