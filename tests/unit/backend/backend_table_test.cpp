#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/process_group.hpp>

#include "support/errors.hpp"

namespace tutti {
namespace {

using test::expect_error;

std::vector<std::string> built() {
  std::vector<std::string> names;
  for (const auto& entry : backends()) names.emplace_back(entry.name);
  return names;
}

TEST(BackendTable, EveryEntryIsComplete) {
  ASSERT_FALSE(backends().empty());
  for (const auto& entry : backends()) {
    EXPECT_FALSE(entry.name.empty());
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_NE(entry.serves, nullptr) << entry.name;
    EXPECT_NE(entry.unavailable, nullptr) << entry.name;
    EXPECT_NE(entry.make, nullptr) << entry.name;
  }
}

TEST(BackendTable, NamesAreDifferent) {
  const auto names = built();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(BackendTable, HasLocalInEveryBuild) {
  const auto names = built();
  EXPECT_NE(std::ranges::find(names, "local"), names.end());
}

TEST(BackendTable, EveryBuiltBackendIsKnown) {
  std::set<std::string_view> known(known_backends().begin(), known_backends().end());
  EXPECT_EQ(known.size(), known_backends().size()) << "one is in the list twice";
  for (const auto& entry : backends()) EXPECT_TRUE(known.contains(entry.name)) << entry.name;
  EXPECT_FALSE(known.contains("auto"));
}

TEST(ChooseBackend, AutoTakesTheFirstThatServesTheDeviceAndSaysWhy) {
  const auto choice = choose_backend("auto", {});
  const auto first = std::ranges::find_if(backends(), [](const BackendEntry& entry) {
    return entry.unavailable().empty() && entry.serves({});
  });
  ASSERT_NE(choice.entry, nullptr);
  EXPECT_EQ(choice.entry->name, first->name);
  EXPECT_NE(choice.because.find("cpu"), std::string::npos) << choice.because;
  EXPECT_EQ(choice.args, "");
}

TEST(ChooseBackend, AutoTakesNoBackendForThreadsWhenRanksAreProcesses) {
  for (const auto& entry : backends()) EXPECT_EQ(entry.one_process, entry.name == "local");
  const auto others = std::ranges::count_if(
      backends(), [](const auto& entry) { return !entry.one_process && entry.serves({}); });
  if (others == 0) {
    expect_error(Errc::unsupported, {"local", "threads of one process"},
                 [] { (void)choose_backend("auto", {}, RankPlacement::host); });
    return;
  }
  const auto choice = choose_backend("auto", {}, RankPlacement::host);
  EXPECT_FALSE(choice.entry->one_process);
  EXPECT_NE(choice.because.find("not local: its ranks are threads"), std::string::npos)
      << choice.because;
  EXPECT_EQ(choose_backend("local", {}, RankPlacement::host).entry->name, "local")
      << "asked for by name";
}

TEST(ChooseBackend, ANameIsTakenAsItIs) {
  const auto choice = choose_backend("local", {});
  EXPECT_EQ(choice.entry->name, "local");
  EXPECT_NE(choice.because.find("name"), std::string::npos) << choice.because;
}

TEST(ChooseBackend, WhatFollowsTheFirstColonAreArguments) {
  EXPECT_EQ(choose_backend("local", {}).args, "");
  EXPECT_EQ(choose_backend("local:", {}).args, "");
  EXPECT_EQ(choose_backend("local:a=1:b", {}).args, "a=1:b");
  EXPECT_EQ(choose_backend("auto:a", {}).args, "a");
}

TEST(ChooseBackend, AnUnknownNameIsRefusedWithAllThatAreKnown) {
  std::vector<std::string> texts{"auto"};
  for (const auto name : known_backends()) texts.emplace_back(name);
  for (const auto* name : {"nothing", "Local", "local ", "", ":a", "auto2"}) {
    auto with_name = texts;
    with_name.push_back(std::string("'") +
                        std::string(name).substr(0, std::string(name).find(':')) + "'");
    expect_error(Errc::invalid_argument, with_name, [&] { (void)choose_backend(name, {}); });
  }
}

TEST(BackendTable, BackendsOfOtherBuildsAreKnown) {
  for (const auto* name : {"gloo", "tcp", "shm", "ucx", "nccl", "hier"})
    EXPECT_NE(std::ranges::find(known_backends(), name), known_backends().end()) << name;
}

TEST(ChooseBackend, AKnownOneThatIsNotBuiltIsUnsupportedAndTheBuiltOnesAreNamed) {
  const auto names = built();
  for (const auto name : known_backends()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::vector<std::string> texts{std::string("'") + std::string(name) + "'",
                                   "is not in this build, which has:"};
    texts.insert(texts.end(), names.begin(), names.end());
    expect_error(Errc::unsupported, texts, [&] { (void)choose_backend(name, {}); });
    expect_error(Errc::unsupported, texts,
                 [&] { (void)choose_backend(std::string(name) + ":args", {}); });
  }
}

TEST(ChooseBackend, ADeviceThatIsNotServedIsUnsupported) {
  const Device foreign{DeviceType::extension, 3};
  expect_error(Errc::unsupported, {"'local'", "extension:3"},
               [&] { (void)choose_backend("local", foreign); });
  std::vector<std::string> texts = built();  // Each with its reason.
  texts.emplace_back("extension:3");
  expect_error(Errc::unsupported, texts, [&] { (void)choose_backend("auto", foreign); });
}

// It is slow, so it is used only if requested by name.
TEST(ChooseBackend, AutoDoesNotChooseABackendThatStages) {
  const Device device{DeviceType::cuda, 0};
  for (const auto& entry : backends()) {
    if (entry.stages == nullptr || !entry.stages(device)) continue;
    EXPECT_FALSE(entry.serves(device)) << entry.name;
    EXPECT_EQ(choose_backend(entry.name, device).entry, &entry);
    try {
      EXPECT_NE(choose_backend("auto", device).entry, &entry);
    } catch (const Error& e) {
      const auto named = "backend = \"" + std::string(entry.name) + "\" to stage";
      EXPECT_NE(e.message().find(named), std::string::npos) << e.message();
    }
  }
}

TEST(ChooseBackend, LocalRefusesArgumentsThatItDoesNotHave) {
  expect_error(Errc::invalid_argument, {"local", "'nonsense'"},
               [] { (void)ProcessGroup::create({.backend = "local:nonsense", .checked = false}); });
}

}  // namespace
}  // namespace tutti
