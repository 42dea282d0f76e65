#include "values/error_record.hpp"

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "values/group_errors.hpp"

namespace {

using tutti::Errc;
using tutti::Error;
using tutti::internal::decode_error;
using tutti::internal::encode_error;

TEST(ErrorRecord, EverythingOfAnErrorArrives) {
  const Error sent(Errc::timeout, "in 1 ms\n(of 2)\n",
                   {.group = "g/1",
                    .operation = "scan",
                    .seq = std::int64_t{1} << 40,
                    .rank = 3,
                    .missing = {3, 5},
                    .earlier = true});
  const Error got = decode_error(encode_error(sent));
  EXPECT_EQ(got.code(), sent.code());
  EXPECT_EQ(got.message(), sent.message());
  EXPECT_EQ(got.where().rank, 3);
  EXPECT_EQ(got.where().seq, std::int64_t{1} << 40);
  EXPECT_EQ(got.where().group, "g/1");
  EXPECT_EQ(got.where().operation, "scan");
  EXPECT_EQ(got.where().missing, (std::vector<int>{3, 5}));
  EXPECT_TRUE(got.where().earlier);
}

TEST(ErrorRecord, WhatIsUnknownStaysUnknown) {
  const Error got = decode_error(encode_error(Error(Errc::backend, "")));
  EXPECT_EQ(got.code(), Errc::backend);
  EXPECT_EQ(got.message(), "");
  EXPECT_EQ(got.where().rank, Error::Where{}.rank);
  EXPECT_EQ(got.where().seq, Error::Where{}.seq);
  EXPECT_EQ(got.where().group, "");
  EXPECT_TRUE(got.where().missing.empty());
}

TEST(ErrorRecord, OtherBytesAreAnError) {
  const auto record = encode_error(Error(Errc::timeout, "late", {.group = "g", .rank = 1}));
  for (std::size_t n = 0; n < record.size(); ++n)
    EXPECT_THROW((void)decode_error(record.substr(0, n)), Error) << n;
  EXPECT_THROW((void)decode_error(record + "x"), Error);
  auto unknown = record;
  unknown[0] = 11;
  tutti::test::expect_error(Errc::backend, {"code 11", "0 to 10"},
                            [&] { (void)decode_error(unknown); });
}

// Its rank is a number of that group.
TEST(GroupErrors, TheCauseOfAnotherGroupNamesNoRankOfTheCalls) {
  const Error cause(Errc::timeout, "late", {.group = "world/0.1", .rank = 1});
  using tutti::internal::ended_by;
  EXPECT_EQ(ended_by(cause, {.group = "world"}).where().rank, -1);
  EXPECT_EQ(ended_by(cause, {.group = "world/0.1"}).where().rank, 1);
}

}  // namespace
