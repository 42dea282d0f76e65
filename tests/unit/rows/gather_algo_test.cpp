#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <tutti/gather.hpp>

namespace tutti {
namespace {

TEST(GatherAlgo, EveryNameIsParsedBack) {
  std::set<std::string_view> names;
  for (int i = 0; i < gather_algo_count; ++i) {
    const auto algo = static_cast<GatherAlgo>(i);
    names.insert(name_of(algo));
    EXPECT_EQ(parse_gather_algo(name_of(algo)), algo) << name_of(algo);
  }
  EXPECT_EQ(names.size(), std::size_t{gather_algo_count}) << "two algorithms share a name";
}

TEST(GatherAlgo, AutoIsAnotherNameAndOthersAreUnknown) {
  EXPECT_EQ(parse_gather_algo("auto"), GatherAlgo::automatic);
  for (const auto* name : {"", "Ring", "ring ", "unknown algorithm"})
    EXPECT_EQ(parse_gather_algo(name), std::nullopt) << "'" << name << "'";
  EXPECT_EQ(name_of(static_cast<GatherAlgo>(gather_algo_count)), "unknown algorithm");
}

TEST(GatherAlgo, TheTableHasALineForEveryBackend) {
  const std::string table = describe_gather_table();
  for (const auto* text : {"backend", "algorithm", "because", "\n* "})
    EXPECT_NE(table.find(text), std::string::npos) << table;
}

}  // namespace
}  // namespace tutti
