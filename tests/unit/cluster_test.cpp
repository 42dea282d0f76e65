#include <tutti/cluster.hpp>

#include <string>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "unit/scoped_variables.hpp"

namespace tutti {
namespace {

using test::expect_error;
using test::ScopedVariables;

/// A process that no launcher has started, whoever started this one.
class VariablesEnvironmentTest : public testing::Test {
 protected:
  ScopedVariables nothing{{"TUTTI_RANK", nullptr},
                          {"TUTTI_SIZE", nullptr},
                          {"TUTTI_LOCAL_RANK", nullptr},
                          {"TUTTI_LOCAL_SIZE", nullptr},
                          {"TUTTI_NODE", nullptr},
                          {"TUTTI_STORE", nullptr},
                          {"RANK", nullptr},
                          {"WORLD_SIZE", nullptr},
                          {"LOCAL_RANK", nullptr},
                          {"LOCAL_WORLD_SIZE", nullptr},
                          {"GROUP_RANK", nullptr}};
  const VariablesEnvironment environment{};
};

TEST_F(VariablesEnvironmentTest, WithoutVariablesThereIsNoLauncher) {
  EXPECT_FALSE(environment.detect().has_value());
}

TEST_F(VariablesEnvironmentTest, TheStoreAloneIsNoLauncher) {
  const ScopedVariables set{{"TUTTI_STORE", "file:///tmp"}, {"TUTTI_LOCAL_RANK", "0"}};
  EXPECT_FALSE(environment.detect().has_value());
}

TEST_F(VariablesEnvironmentTest, ReadsItsOwnVariables) {
  const ScopedVariables set{{"TUTTI_RANK", "3"},       {"TUTTI_SIZE", "8"},
                            {"TUTTI_LOCAL_RANK", "1"}, {"TUTTI_LOCAL_SIZE", "2"},
                            {"TUTTI_NODE", "4"},       {"TUTTI_STORE", "file:///somewhere"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "tutti");
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->node, 4);
  EXPECT_EQ(info->store, "file:///somewhere");
}

TEST_F(VariablesEnvironmentTest, ReadsThoseOfTorchrun) {
  const ScopedVariables set{{"RANK", "0"},       {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
                            {"GROUP_RANK", "0"}, {"TUTTI_STORE", "file:///somewhere"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "torchrun");
  EXPECT_EQ(info->rank, 0);
  EXPECT_EQ(info->size, 2);
  EXPECT_EQ(info->local_rank, 0);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->node, 0);
  EXPECT_EQ(info->store, "file:///somewhere");
}

TEST_F(VariablesEnvironmentTest, WhatIsNotToldIsUnknown) {
  const ScopedVariables set{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->local_rank, -1);
  EXPECT_EQ(info->local_size, -1);
  EXPECT_EQ(info->node, -1);
  EXPECT_EQ(info->store, "");
}

TEST_F(VariablesEnvironmentTest, ItsOwnVariablesWinAndAreNeverMixedWithTorchruns) {
  const ScopedVariables set{{"TUTTI_RANK", "1"}, {"TUTTI_SIZE", "2"}, {"RANK", "5"},
                            {"WORLD_SIZE", "9"}, {"LOCAL_RANK", "5"}, {"GROUP_RANK", "3"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "tutti");
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->size, 2);
  EXPECT_EQ(info->local_rank, -1) << "torchrun's says nothing about another launcher";
  EXPECT_EQ(info->node, -1);
}

TEST_F(VariablesEnvironmentTest, HalfAPairIsRefusedWithBothNames) {
  {
    const ScopedVariables set{{"TUTTI_RANK", "1"}};
    expect_error(Errc::invalid_argument, {"TUTTI_RANK", "TUTTI_SIZE"},
                 [&] { (void)environment.detect(); });
  }
  {
    // Not completed from the other launcher's variables.
    const ScopedVariables set{{"TUTTI_SIZE", "4"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}};
    expect_error(Errc::invalid_argument, {"TUTTI_SIZE", "TUTTI_RANK"},
                 [&] { (void)environment.detect(); });
  }
  {
    const ScopedVariables set{{"RANK", "1"}};
    expect_error(Errc::invalid_argument, {"RANK", "WORLD_SIZE"},
                 [&] { (void)environment.detect(); });
  }
}

TEST_F(VariablesEnvironmentTest, AnEmptyVariableIsNotSet) {
  const ScopedVariables set{
      {"TUTTI_RANK", ""}, {"TUTTI_SIZE", ""}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(environment.detect()->launcher, "torchrun");
}

TEST_F(VariablesEnvironmentTest, WhatIsNoNumberIsRefusedByNameAndText) {
  for (const char* text : {"one", "-1", "1.5", " 1", "1 ", "0x1", "+1", "99999999999999999999"}) {
    const ScopedVariables set{{"TUTTI_RANK", text}, {"TUTTI_SIZE", "4"}};
    expect_error(Errc::invalid_argument, {"TUTTI_RANK", std::string("'") + text + "'"},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables set{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "first"}};
  expect_error(Errc::invalid_argument, {"LOCAL_RANK", "first"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, ARankOutsideOfItsSizeIsRefusedWithBothNumbers) {
  for (const auto& [rank, size] : {std::pair{"4", "4"}, {"7", "2"}, {"0", "0"}}) {
    const ScopedVariables set{{"TUTTI_RANK", rank}, {"TUTTI_SIZE", size}};
    expect_error(Errc::invalid_argument,
                 {std::string("TUTTI_RANK is ") + rank, std::string("TUTTI_SIZE is ") + size},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables set{{"RANK", "2"}, {"WORLD_SIZE", "2"}};
  expect_error(Errc::invalid_argument, {"RANK is 2", "WORLD_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, ALocalRankOutsideOfItsSizeIsRefusedWithBothNumbers) {
  const ScopedVariables set{{"TUTTI_RANK", "1"},
                            {"TUTTI_SIZE", "8"},
                            {"TUTTI_LOCAL_RANK", "5"},
                            {"TUTTI_LOCAL_SIZE", "2"}};
  expect_error(Errc::invalid_argument, {"TUTTI_LOCAL_RANK is 5", "TUTTI_LOCAL_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, AHostWithMoreRanksThanThereAreIsRefusedWithBothNumbers) {
  const ScopedVariables set{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}};
  expect_error(Errc::invalid_argument, {"LOCAL_WORLD_SIZE is 3", "WORLD_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

}  // namespace
}  // namespace tutti
