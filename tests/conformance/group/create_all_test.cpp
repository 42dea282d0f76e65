#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

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

/// Makes the groups on a thread each, the last one a while after or before the others. Returns the
/// errors.
std::vector<Error> errors_of(std::span<const GroupOptions> all, bool last_is_first) {
  std::vector<Error> errors(all.size(), Error(Errc::backend, ""));
  on_threads(static_cast<int>(all.size()), [&](int i) {
    const bool is_last = i + 1 == static_cast<int>(all.size());
    if (is_last != last_is_first) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      (void)ProcessGroup::create(all[static_cast<std::size_t>(i)]);
      ADD_FAILURE() << "a group without its last rank";
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(i)] = error;
    }
  });
  return errors;
}

/// Every rank gets the error at once, also those that came before the rank that differs.
void expect_mismatch(std::span<const GroupOptions> all, const std::vector<std::string>& parts) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& error : errors_of(all, false)) {
    EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
    for (const auto& part : parts)
      EXPECT_NE(error.message().find(part), std::string::npos) << part << ": " << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_P(RanksOfOneProcess, OfAnotherSizeAreNamed) {
  auto all = options();
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

TEST_P(RanksOfOneProcess, EndAtOnceWhenARankCannotComeUp) {
  for (const bool last_is_first : {true, false}) {
    auto all = options();
    const auto right = all;
    all.back().backend += ":nosuch";
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = errors_of(all, last_is_first);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    // Over ucx this may be a peer, which cannot connect to the last rank.
    const auto first =
        static_cast<std::size_t>(std::ranges::find(errors, std::string::npos,
                                                   [](const Error& error) {
                                                     return error.message().find("could not make");
                                                   }) -
                                 errors.begin());
    ASSERT_LT(first, all.size());
    const auto text = "rank " + std::to_string(first) + " could not make group '" + all[0].name +
                      "': " + errors[first].message();
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(errors[i].code(), errors[first].code()) << errors[i].what();
      if (i != first) {
        EXPECT_EQ(errors[i].message(), text);
      }
    }
    EXPECT_EQ(ProcessGroup::create_all(right).size(), all.size()) << "the name may be used again";
  }
}

TEST_P(RanksOfOneProcess, OfWhichOnlyOneIsCheckedAreNamed) {
  auto all = options();
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
