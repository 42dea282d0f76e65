#include <gtest/gtest.h>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class RanksOfOneProcess : public testing::TestWithParam<World> {
 protected:
  std::vector<GroupOptions> options() const {
    const auto store = make_memory_store();
    std::vector<GroupOptions> all;
    for (int rank = 0; rank < GetParam().size; ++rank)
      all.push_back(group_options(GetParam(), rank, store));
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, RanksOfOneProcess, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(RanksOfOneProcess, AreMadeTogetherInTheOrderOfTheirOptions) {
  auto all = options();
  std::swap(all.front(), all.back());
  auto groups = ProcessGroup::create_all(all);
  ASSERT_EQ(groups.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(groups[i].rank(), all[i].rank);
  on_threads(GetParam().size, [&](int i) {
    ProcessGroup group = std::move(groups[static_cast<std::size_t>(i)]);
    group.barrier();
  });
}

TEST_P(RanksOfOneProcess, AreNotMadeWhenOneOfThemCannotBe) {
  auto all = options();
  for (auto& one : all) one.timeout = std::chrono::milliseconds(200);
  all.back().rank = GetParam().size;
  const std::string text = "rank is " + std::to_string(GetParam().size);
  bool named = false;
  try {
    (void)ProcessGroup::create_all(all);
    ADD_FAILURE() << "groups without their last rank";
  } catch (const Error& error) {
    named =
        error.code() == Errc::invalid_argument && error.message().find(text) != std::string::npos;
    EXPECT_TRUE(named) << error.what();
  }
}

/// The other ranks wait for the rank that differs, unless it came first.
void expect_mismatch(std::span<const GroupOptions> all, const std::vector<std::string>& parts) {
  expect_error(Errc::mismatch, parts, [&] { (void)ProcessGroup::create_all(all); });
}

TEST_P(RanksOfOneProcess, OfAnotherSizeAreNamed) {
  auto all = options();
  for (auto& one : all) one.timeout = std::chrono::milliseconds(200);
  all.back().size += 1;
  expect_mismatch(all, {"size " + std::to_string(GetParam().size),
                        "size " + std::to_string(GetParam().size + 1), "GroupOptions::checked"});
}

TEST_P(RanksOfOneProcess, MayUseTheNameAgainAfterAFailure) {
  for (int failures = 0; failures < 2; ++failures) {  // Each takes a try of its own.
    auto all = options();
    const auto right = all;
    for (int n = 0; n <= failures; ++n) {
      for (auto& one : all) one.timeout = std::chrono::milliseconds(200);
      all.front().size = GetParam().size + 1;  // It waits for one more rank.
      const std::vector<GroupOptions> first{all.front()};
      expect_error({Errc::timeout, Errc::peer_lost}, {},
                   [&] { (void)ProcessGroup::create_all(first); });
    }
    auto groups = ProcessGroup::create_all(right);
    ASSERT_EQ(groups.size(), right.size());
    on_threads(GetParam().size, [&](int i) {
      ProcessGroup group = std::move(groups[static_cast<std::size_t>(i)]);
      group.barrier();
    });
  }
}

TEST_P(RanksOfOneProcess, OfWhichOnlyOneIsCheckedAreNamed) {
  auto all = options();
  for (auto& one : all) one.timeout = std::chrono::milliseconds(200);
  all.front().checked = !GetParam().checked;
  expect_mismatch(all, {"checked mode on", "checked mode off", "TUTTI_CHECK"});
}

TEST_P(RanksOfOneProcess, MayUseANameAgainWithAnotherMode) {
  auto all = options();
  for (const bool checked : {true, false}) {
    for (auto& one : all) one.checked = checked;
    (void)ProcessGroup::create_all(all);
  }
}

TEST(RanksOfNoProcess, AreNone) {
  EXPECT_TRUE(ProcessGroup::create_all({}).empty());
}

}  // namespace
}  // namespace tutti::test
