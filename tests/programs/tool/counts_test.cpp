#include "bench/counts.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

using Values = std::vector<std::int64_t>;

Values cut(const std::string& counts, std::int64_t total, int ranks) {
  const RowLayout layout = Counts::parse(counts).cut(total, ranks);
  return {layout.counts().begin(), layout.counts().end()};
}

/// The text of the refusal of `f`; empty if it is accepted.
template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
  return "";
}

/// A file that is removed with the test.
class NumbersFile {
 public:
  explicit NumbersFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "tutti_counts_XXXXXX").string();
    const int descriptor = mkstemp(name.data());
    EXPECT_GE(descriptor, 0);
    if (descriptor >= 0) close(descriptor);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~NumbersFile() { std::filesystem::remove(path_); }
  NumbersFile(const NumbersFile&) = delete;
  NumbersFile& operator=(const NumbersFile&) = delete;
  std::string option() const { return "file:" + path_; }

 private:
  std::string path_;
};

TEST(Counts, TheFormsAreWhatTheHelpSays) {
  EXPECT_EQ(cut("even", 12, 4), (Values{3, 3, 3, 3}));
  EXPECT_EQ(cut("last-short", 14, 4), (Values{4, 4, 4, 2}));
  EXPECT_EQ(cut("one-empty", 12, 4), (Values{4, 4, 0, 4}));
  EXPECT_EQ(cut("mild", 300, 3), (Values{90, 100, 110}));
  EXPECT_EQ(cut("linear", 10, 4), (Values{1, 2, 3, 4}));
  EXPECT_EQ(cut("zipf:1", 1100, 3), (Values{600, 300, 200}));
  EXPECT_EQ(cut("zipf:2", 4900, 3), (Values{3600, 900, 400}));
  EXPECT_EQ(cut("zipf:0", 12, 3), (Values{4, 4, 4}));
  EXPECT_EQ(cut("one-only", 12, 4), (Values{0, 0, 12, 0}));
}

TEST(Counts, EveryFormAddsUpToTheTotalForAnyTotalAndNumberOfRanks) {
  for (const char* form :
       {"even", "last-short", "one-empty", "mild", "linear", "zipf:1.5", "zipf:16", "one-only"}) {
    for (const int ranks : {2, 3, 4, 7, 64}) {
      for (const std::int64_t total :
           {std::int64_t{1}, std::int64_t{2}, std::int64_t{63}, std::int64_t{1000003},
            std::int64_t{1} << 45, std::numeric_limits<std::int64_t>::max()}) {
        const Values blocks = cut(form, total, ranks);
        EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}), total)
            << form << " " << ranks;
        EXPECT_GE(*std::min_element(blocks.begin(), blocks.end()), 0) << form << " " << ranks;
      }
    }
  }
}

TEST(Counts, NoBlockIsMoreThanOneElementFromItsShare) {
  for (const int ranks : {2, 5, 31}) {
    const std::int64_t total = 1000;
    const Values blocks = cut("linear", total, ranks);
    for (int r = 0; r < ranks; ++r)
      EXPECT_NEAR(static_cast<double>(blocks[static_cast<std::size_t>(r)]),
                  2.0 * static_cast<double>(total) * (r + 1) / (ranks * (ranks + 1)), 1.0);
  }
}

TEST(Counts, OneRankHasEverything) {
  for (const char* form : {"even", "last-short", "mild", "linear", "zipf:1", "one-only"})
    EXPECT_EQ(cut(form, 7, 1), Values{7}) << form;
  EXPECT_NE(refusal([] { cut("one-empty", 7, 1); }).find("two ranks"), std::string::npos);
}

TEST(Counts, AFileHasTheCountsOrTheirProportions) {
  const NumbersFile file("3, 0\n5\t4\n");
  const Counts counts = Counts::parse(file.option());
  EXPECT_EQ(counts.name(), file.option());
  EXPECT_FALSE(counts.is_even());
  EXPECT_EQ(cut(file.option(), 12, 4), (Values{3, 0, 5, 4}));
  EXPECT_EQ(cut(file.option(), 1200, 4), (Values{300, 0, 500, 400}));
  // Values whose 64-bit product would wrap.
  const NumbersFile large("4000000000000000000,1000000000000000001");
  EXPECT_EQ(cut(large.option(), 5000000000000000001, 2),
            (Values{4000000000000000000, 1000000000000000001}));
}

TEST(Counts, WhatAFileMustNotHoldIsNamed) {
  const auto says = [](const std::string& text, const std::string& part) {
    const NumbersFile file(text);
    const std::string line = refusal([&] { Counts::parse(file.option()); });
    EXPECT_NE(line.find(file.option()), std::string::npos) << line;
    EXPECT_NE(line.find(part), std::string::npos) << line;
  };
  says("3 -1", "'-1'");
  says("3 four", "'four'");
  says("3 1.5", "'1.5'");
  says("", "one number per rank");
  says("0 0", "not all of them 0");
  says("9223372036854775807 1", "63 bits");
  EXPECT_NE(refusal([] { Counts::parse("file:/nowhere/counts"); }).find("cannot be read"),
            std::string::npos);
  const NumbersFile three("1 2 3");
  const std::string line = refusal([&] { cut(three.option(), 12, 4); });
  EXPECT_NE(line.find("3 numbers for 4 ranks"), std::string::npos) << line;
}

TEST(Counts, AnUnknownFormIsRefusedWithThoseThatThereAre) {
  for (const char* text : {"skewed", "Even", "", "file", "file:", "linear:2"}) {
    const std::string line = refusal([&] { Counts::parse(text); });
    for (const char* form :
         {"even", "last-short", "one-empty", "mild", "linear", "zipf:A", "one-only", "file:PATH"})
      EXPECT_NE(line.find(form), std::string::npos) << text << ": " << line;
  }
  for (const char* text : {"zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:17", "zipf:1e2", "zipf:nan"})
    EXPECT_NE(refusal([&] { Counts::parse(text); }).find("zipf:A"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::tool
