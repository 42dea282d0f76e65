#include <tutti/error.hpp>

#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti {
namespace {

static_assert(std::is_nothrow_copy_constructible_v<Error>);
static_assert(std::is_nothrow_copy_assignable_v<Error>);
static_assert(std::is_base_of_v<std::runtime_error, Error>);

// Users match these names in what(): a changed one breaks their programs.
TEST(Error, ACodeIsPrintedByItsName) {
  EXPECT_EQ(name_of(Errc::invalid_argument), "invalid_argument");
  EXPECT_EQ(name_of(Errc::count_overflow), "count_overflow");
  EXPECT_EQ(name_of(Errc::mismatch), "mismatch");
  EXPECT_EQ(name_of(Errc::unsupported), "unsupported");
  EXPECT_EQ(name_of(Errc::not_initialized), "not_initialized");
  EXPECT_EQ(name_of(Errc::timeout), "timeout");
  EXPECT_EQ(name_of(Errc::peer_lost), "peer_lost");
  EXPECT_EQ(name_of(Errc::aborted), "aborted");
  EXPECT_EQ(name_of(Errc::resource_exhausted), "resource_exhausted");
  EXPECT_EQ(name_of(Errc::forked), "forked");
  EXPECT_EQ(name_of(Errc::backend), "backend");
  EXPECT_EQ(name_of(static_cast<Errc>(static_cast<int>(Errc::backend) + 1)), "unknown");
  EXPECT_EQ(name_of(static_cast<Errc>(200)), "unknown");
}

TEST(Error, ACodeIsAnErrorCodeOfTheStandardLibrary) {
  const std::error_code code = Errc::invalid_argument;
  EXPECT_TRUE(code);
  EXPECT_EQ(code, Errc::invalid_argument);
  EXPECT_NE(code, make_error_code(Errc::timeout));
  EXPECT_EQ(code.value(), 1);
  EXPECT_STREQ(code.category().name(), "tutti");
  EXPECT_EQ(code.message(), "invalid_argument");
  EXPECT_EQ(error_category().message(0), "unknown");
}

TEST(Error, TextBeginsWithTheCode) {
  const Error error(Errc::timeout, "too late");
  EXPECT_STREQ(error.what(), "timeout: too late");
  EXPECT_EQ(error.message(), "too late");
  EXPECT_EQ(error.code(), Errc::timeout);
}

TEST(Error, TextHasThePlaceWhereItIsKnown) {
  const auto text = [](const Error::Where& where) {
    return std::string(Error(Errc::mismatch, "they differ", where).what());
  };
  EXPECT_EQ(text({.group = "world", .operation = "all_reduce", .seq = 17, .rank = 2}),
            "mismatch: all_reduce #17 on group 'world': they differ");
  EXPECT_EQ(text({.operation = "send", .seq = 0}), "mismatch: send #0: they differ");
  EXPECT_EQ(text({.operation = "send"}), "mismatch: send: they differ");
  EXPECT_EQ(text({.group = "a"}), "mismatch: group 'a': they differ");
  EXPECT_EQ(text({.rank = 3}), "mismatch: they differ");
}

TEST(Error, WhereIsUnknownUnlessGiven) {
  const Error error(Errc::backend, "x");
  EXPECT_EQ(error.where().group, "");
  EXPECT_EQ(error.where().operation, "");
  EXPECT_EQ(error.where().seq, -1);
  EXPECT_EQ(error.where().rank, -1);
  const Error placed(Errc::backend, "x", {.group = "g", .seq = 3, .rank = 1});
  EXPECT_EQ(placed.where().group, "g");
  EXPECT_EQ(placed.where().seq, 3);
  EXPECT_EQ(placed.where().rank, 1);
}

TEST(Error, CopiesSayTheSameAfterTheOriginalIsGone) {
  Error copy(Errc::backend, "");
  {
    const Error original(Errc::peer_lost, std::string(200, 'x'), {.group = "g", .rank = 1});
    copy = original;
  }
  EXPECT_EQ(copy.code(), Errc::peer_lost);
  EXPECT_EQ(copy.message(), std::string(200, 'x'));
  EXPECT_EQ(copy.where().group, "g");
  EXPECT_EQ(copy.what(), "peer_lost: group 'g': " + std::string(200, 'x'));
}

TEST(Error, FailThrowsIt) {
  const Error error =
      test::expect_error(Errc::unsupported, {"no way"}, [] { fail(Errc::unsupported, "no way"); });
  EXPECT_EQ(error.message(), "no way");
}

}  // namespace
}  // namespace tutti
