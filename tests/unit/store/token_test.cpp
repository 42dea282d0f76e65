#include <tutti/store/token.hpp>

#include <sys/stat.h>

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

class Token : public testing::Test {
 protected:
  void SetUp() override {
    if (!StoreToken::available()) GTEST_SKIP() << "built without OpenSSL";
  }
  std::string file(const std::string& text, mode_t mode = 0600) {
    const auto path = directory_.path() + "/token";
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

 private:
  TemporaryDirectory directory_{};
};

const std::string secret(40, 's');

TEST_F(Token, RandomTokensAreTextAndDiffer) {
  const auto one = StoreToken::random();
  EXPECT_EQ(one.text().size(), 64U);
  EXPECT_EQ(one.text().find_first_not_of("0123456789abcdef"), std::string_view::npos);
  EXPECT_NE(one.text(), StoreToken::random().text());
  EXPECT_FALSE(StoreToken());
  EXPECT_EQ(StoreToken().text(), "");
}

TEST_F(Token, AFileHasTheTokenWithoutTheEndOfTheLine) {
  EXPECT_EQ(StoreToken::read(file(secret + "\r\n")).text(), secret);
  EXPECT_EQ(StoreToken::read(file(secret, 0400)).text(), secret);
  EXPECT_EQ(StoreToken::read(file(std::string(4096, 'x') + "\n")).text().size(), 4096U);
}

TEST_F(Token, AFileThatOthersMayReadIsRefusedByItsMode) {
  for (const mode_t mode : {0640U, 0604U, 0620U, 0610U})
    expect_error(Errc::invalid_argument, {"token", "its mode is 06", "chmod 600"},
                 [&] { (void)StoreToken::read(file(secret, mode)); });
}

TEST_F(Token, ATextOfAnotherLengthIsRefusedWithoutShowingIt) {
  for (const auto& text : {std::string(), std::string(31, 's'), std::string(5000, 's')}) {
    try {
      (void)StoreToken::read(file(text));
      FAIL() << text.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::invalid_argument);
      EXPECT_NE(error.message().find("32 to 4096"), std::string::npos) << error.message();
      EXPECT_EQ(error.message().find("sss"), std::string::npos) << error.message();
    }
    expect_error(Errc::invalid_argument, {"32 to 4096"},
                 [&] { (void)StoreToken::from_text(text); });
  }
}

TEST_F(Token, WhatIsNoFileIsRefused) {
  expect_error(Errc::invalid_argument, {"/nowhere/token", "No such file"},
               [] { (void)StoreToken::read("/nowhere/token"); });
  const TemporaryDirectory directory;
  expect_error(Errc::invalid_argument, {"not a regular file"},
               [&] { (void)StoreToken::read(directory.path()); });
}

TEST(TokenWithoutOpenSsl, IsUnsupported) {
  if (StoreToken::available()) GTEST_SKIP() << "built with OpenSSL";
  expect_error(Errc::unsupported, {"OpenSSL"}, [] { (void)StoreToken::random(); });
  expect_error(Errc::unsupported, {"OpenSSL"}, [] { (void)StoreToken::from_text(secret); });
  expect_error(Errc::unsupported, {"OpenSSL"}, [] { (void)StoreToken::read("/nowhere"); });
}

}  // namespace
}  // namespace tutti::test
