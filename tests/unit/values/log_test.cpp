#include <tutti/log.hpp>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"

namespace tutti {
namespace {

using test::ScopedVariables;

/// The text that a message of each level writes to stderr.
std::string log_all(const Logger& logger) {
  testing::internal::CaptureStderr();
  logger(LogLevel::error, "one");
  logger(LogLevel::warning, "two");
  logger(LogLevel::info, "three");
  logger(LogLevel::debug, "four");
  return testing::internal::GetCapturedStderr();
}

std::string log_all_with(const char* value) {
  const ScopedVariables variable{{"TUTTI_LOG", value}};
  return log_all(default_logger());
}

constexpr const char* error_line = "tutti: error: one\n";
constexpr const char* warning_line = "tutti: warning: two\n";
constexpr const char* info_line = "tutti: info: three\n";
constexpr const char* debug_line = "tutti: debug: four\n";

TEST(DefaultLogger, WritesItsLevelAndWhatIsMoreImportant) {
  EXPECT_EQ(log_all_with("off"), "");
  EXPECT_EQ(log_all_with("error"), std::string(error_line));
  EXPECT_EQ(log_all_with("warning"), std::string(error_line) + warning_line);
  EXPECT_EQ(log_all_with("info"), std::string(error_line) + warning_line + info_line);
  EXPECT_EQ(log_all_with("debug"), std::string(error_line) + warning_line + info_line + debug_line);
}

TEST(DefaultLogger, WritesWarningsByDefault) {
  for (const char* value : {static_cast<const char*>(nullptr), "", "banana", "INFO"})
    EXPECT_EQ(log_all_with(value), std::string(error_line) + warning_line)
        << (value == nullptr ? "not set" : value);
}

TEST(DefaultLogger, AGroupRefusesAnUnknownLevelByName) {
  for (const char* value : {"banana", "INFO", " info", "2"}) {
    const ScopedVariables variable{{"TUTTI_LOG", value}};
    test::expect_error(
        Errc::invalid_argument,
        {"TUTTI_LOG", std::string("'") + value + "'", "off, error, warning, info or debug"},
        [] { (void)ProcessGroup::create({.backend = "local"}); });
    EXPECT_EQ(
        ProcessGroup::create({.backend = "local", .logger = [](LogLevel, std::string_view) {}})
            .size(),
        1)
        << "the variable is not asked";
  }
  for (const char* value : {"", "off", "error", "warning", "info", "debug"}) {
    const ScopedVariables variable{{"TUTTI_LOG", value}};
    testing::internal::CaptureStderr();
    EXPECT_EQ(ProcessGroup::create({.backend = "local"}).size(), 1) << value;
    (void)testing::internal::GetCapturedStderr();
  }
}

TEST(DefaultLogger, ReadsTheVariableWhenItIsMade) {
  std::optional<Logger> logger;
  {
    const ScopedVariables variable{{"TUTTI_LOG", "error"}};
    logger = default_logger();
  }
  const ScopedVariables variable{{"TUTTI_LOG", "debug"}};
  EXPECT_EQ(log_all(*logger), std::string(error_line));
}

TEST(DefaultLogger, NothingIsWrittenForTheLevelOff) {
  const ScopedVariables variable{{"TUTTI_LOG", "debug"}};
  testing::internal::CaptureStderr();
  default_logger()(LogLevel::off, "never");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(DefaultLogger, LinesOfSeveralThreadsDoNotMix) {
  const ScopedVariables variable{{"TUTTI_LOG", "error"}};
  const auto logger = default_logger();
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&logger, t] {
      const std::string message(100, static_cast<char>('a' + t));
      for (int i = 0; i < 200; ++i) logger(LogLevel::error, message);
    });
  for (auto& thread : threads) thread.join();
  const auto all = testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  for (std::size_t at = 0; at < all.size(); ++lines) {
    const auto end = all.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    const auto line = all.substr(at, end - at);
    ASSERT_EQ(line, "tutti: error: " + std::string(100, line.back()));
    at = end + 1;
  }
  EXPECT_EQ(lines, 800U);
}

}  // namespace
}  // namespace tutti
