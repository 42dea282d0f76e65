#include "bench/progress.hpp"

#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;

/// A pseudo-terminal: the progress writes to one end, the test reads the other.
class Ends {
 public:
  enum class Kind { pipe, terminal };
  explicit Ends(Kind kind) {
    int ends[2] = {-1, -1};
    if (kind == Kind::pipe) {
      EXPECT_EQ(pipe(ends), 0);
    } else {
      EXPECT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
    }
    from_ = ends[0];
    to_ = fdopen(ends[1], "w");
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    close(from_);
    finish();
  }
  std::FILE* to() { return to_; }
  void finish() {
    if (to_ != nullptr) std::fclose(to_);
    to_ = nullptr;
  }
  /// Blocks until there is a whole line, and returns it with its end.
  std::string read_line() {
    std::string line;
    for (char c = 0; c != '\n' && read(from_, &c, 1) == 1;) line += c;
    return line;
  }
  /// Blocks until there is output.
  std::string read_some() {
    char text[1024];
    const ssize_t n = read(from_, text, sizeof text);
    return {text, n > 0 ? static_cast<std::size_t>(n) : 0};
  }

 private:
  int from_ = -1;
  std::FILE* to_ = nullptr;
};

Key all_reduce() {
  Key key;
  key.coll = "all_reduce";
  return key;
}
Row a_row() {
  Row row;
  row.algbw = 0.5;
  row.busbw = 0.74;
  return row;
}

TEST(Progress, ASilentRunSaysWhereItIs) {
  Ends ends(Ends::Kind::pipe);
  Progress progress(ends.to(), true, 29, 20ms);
  EXPECT_EQ(ends.read_line(), "waiting for all ranks [1/29]\n");
  progress.before_row(all_reduce(), 8);
  progress.after_row(a_row());
  progress.before_row(all_reduce(), 32 << 20);
  std::string line;
  while (line.find("32 MiB") == std::string::npos) line = ends.read_line();
  EXPECT_EQ(line.find("all_reduce 32 MiB [2/29] 0.74 GB/s  ETA "), 0U) << line;
  EXPECT_EQ(line.back(), '\n');
}

TEST(Progress, AClientThatSendsIsNotSilent) {
  Ends ends(Ends::Kind::pipe);
  {
    Progress progress(ends.to(), true, 3, 1h);
    progress.before_row(all_reduce(), 8);
    progress.clear();
    progress.after_row(a_row());
  }
  {
    Progress unwanted(ends.to(), false, 3, 1ns);
    unwanted.before_row(all_reduce(), 8);
    unwanted.clear();
  }
  ends.finish();
  EXPECT_EQ(ends.read_some(), "");
}

TEST(Progress, OnATerminalOneLineIsWrittenOver) {
  Ends ends(Ends::Kind::terminal);
  Progress progress(ends.to(), true, 2);
  progress.before_row(all_reduce(), 8);
  EXPECT_EQ(ends.read_some(), "\r\x1b[Kall_reduce 8 B [1/2] ░░░░░░");
  progress.after_row(a_row());
  progress.clear();
  EXPECT_EQ(ends.read_some(), "\r\x1b[K");
  progress.before_row(all_reduce(), 16);
  const std::string line = ends.read_some();
  EXPECT_EQ(line.find("\r\x1b[Kall_reduce 16 B [2/2] ▓▓▓░░░ 0.74 GB/s  ETA "), 0U) << line;
}

}  // namespace
}  // namespace tutti::tool
