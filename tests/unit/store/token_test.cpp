#include <tutti/store/token.hpp>

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/scoped_variables.hpp"
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
  for (const mode_t mode : {0644U, 0604U, 0660U, 0620U, 0610U})
    expect_error(Errc::invalid_argument,
                 {"token", "its mode is 06", "chmod 600", "install -m 600", "defaultMode: 0440"},
                 [&] { (void)StoreToken::read(file(secret, mode)); });
}

// As Kubernetes mounts a Secret: the path leads through symbolic links to a file of root and of the
// group of the pod (fsGroup).
TEST_F(Token, AGroupOfTheProcessMayReadAFileOfRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto target = file(secret);
  const auto folder = target.substr(0, target.rfind('/'));
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const auto link = folder + "/link";
  ASSERT_EQ(::symlink("token", link.c_str()), 0);
  // Returns the token or the error of a process of user 1000 with these groups.
  const auto read = [&](uid_t owner, mode_t mode, std::vector<gid_t> groups, gid_t group = 2000) {
    EXPECT_EQ(::chown(target.c_str(), owner, group), 0);
    EXPECT_EQ(::chmod(target.c_str(), mode), 0);
    return in_child([&]() -> std::string {
             if (::setgroups(groups.size(), groups.data()) != 0 || ::setgid(1000) != 0 ||
                 ::setuid(1000) != 0)
               return "not permitted";
             return std::string(StoreToken::read(link).text());
           })
        .output;
  };
  EXPECT_EQ(read(0, 0440, {2000}), secret);
  EXPECT_EQ(read(0, 0640, {3000, 2000}), secret);
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(read(0, 0440, {3000}), "Permission denied for user 1000");
  has(read(0, 0400, {2000}), "defaultMode: 0440 with fsGroup");
  has(read(0, 0444, {2000}), "its mode is 0444, its owner user 0 and its group 2000");
  has(read(0, 0460, {2000}), "its mode is 0460");
  has(read(1000, 0440, {2000}), "its mode is 0440");
  has(read(0, 0440, {65534}, 65534), "its mode is 0440");  // Any group, in a user namespace.
  has(read(1001, 0440, {2000}), "it belongs to user 1001, this process to user 1000");
}

TEST_F(Token, APipeIsReadOnceAndItsTokenKept) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto path = fmt::format("/dev/fd/{}", ends[0]);
  EXPECT_EQ(::write(ends[1], secret.data(), secret.size()), std::ssize(secret));
  ::close(ends[1]);
  EXPECT_EQ(StoreToken::read(path).text(), secret);
  EXPECT_EQ(StoreToken::read(path).text(), secret);
  int next[2];
  ASSERT_EQ(::pipe(next), 0);
  ASSERT_EQ(::dup2(next[0], ends[0]), ends[0]);  // Another pipe with the same path.
  for (const int end : next) ::close(end);
  expect_error(Errc::invalid_argument, {path, "pipe without bytes", "each process needs its own"},
               [&] { (void)StoreToken::read(path); });
  ::close(ends[0]);
}

TEST_F(Token, TheVariableWithTheSecretItselfIsRefused) {
  const ScopedVariables file{{"TUTTI_TOKEN_FILE", "/secret"}, {"TUTTI_TOKEN", nullptr}};
  EXPECT_EQ(StoreToken::file_of_environment(), "/secret");
  const ScopedVariables text{{"TUTTI_TOKEN", secret.c_str()}};
  expect_error(Errc::invalid_argument, {"TUTTI_TOKEN is set", "TUTTI_TOKEN_FILE=<("},
               [] { (void)StoreToken::file_of_environment(); });
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
  expect_error(Errc::invalid_argument, {"neither a regular file nor a pipe"},
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
