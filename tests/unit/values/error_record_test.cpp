#include "values/error_record.hpp"

#include <gtest/gtest.h>

namespace {

using tutti::Errc;
using tutti::Error;
using tutti::internal::decode_error;
using tutti::internal::encode_error;

TEST(ErrorRecord, EverythingOfAnErrorArrives) {
  const Error sent(Errc::timeout, "in 1 ms\n(of 2)\n",
                   {.group = "g/1", .operation = "scan", .seq = std::int64_t{1} << 40, .rank = 3});
  const Error got = decode_error(encode_error(sent));
  EXPECT_EQ(got.code(), sent.code());
  EXPECT_EQ(got.message(), sent.message());
  EXPECT_EQ(got.where().rank, 3);
  EXPECT_EQ(got.where().seq, std::int64_t{1} << 40);
  EXPECT_EQ(got.where().group, "g/1");
  EXPECT_EQ(got.where().operation, "scan");
}

TEST(ErrorRecord, WhatIsUnknownStaysUnknown) {
  const Error got = decode_error(encode_error(Error(Errc::backend, "")));
  EXPECT_EQ(got.code(), Errc::backend);
  EXPECT_EQ(got.message(), "");
  EXPECT_EQ(got.where().rank, Error::Where{}.rank);
  EXPECT_EQ(got.where().seq, Error::Where{}.seq);
  EXPECT_EQ(got.where().group, "");
}

}  // namespace
