#include <signal.h>

#include <string>

#include <gtest/gtest.h>

#include <tutti/error.hpp>
#include <tutti/group_options.hpp>
#include <tutti/store/store.hpp>

#include "support/processes.hpp"
#include "support/temporary_directory.hpp"
#include "unit/losses/feature_calls.hpp"

// A process that dies between two calls of a loss over features is named by the error of the
// others.

namespace tutti::test {
namespace {

class FeatureSurvivors : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, FeatureSurvivors, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(FeatureSurvivors, GetTheNamedErrorOfTheRankThatDied) {
  bool exists = false;
  for (const auto& world : worlds({3})) exists = exists || world.backend == GetParam();
  if (!exists) GTEST_SKIP() << "there is no backend " << GetParam();
  const TemporaryDirectory directory;
  std::mt19937_64 random(1);
  const auto call = make_feature_call(random, 700, 8, 3, false, false);
  const auto ends = in_children(3, [&](int rank) -> std::string {
    auto group = ProcessGroup::create({.backend = GetParam(),
                                       .store = open_store("file://" + directory.path()),
                                       .rank = rank,
                                       .size = 3,
                                       .timeout = 20s,
                                       .logger = [](LogLevel, std::string_view) {}});
    losses::Clip loss({.logit_scale = 4});
    const FeaturePart<float> part(call, 0, 700);
    if (!(loss(group, part.batch(FeatureKind::clip)).loss > 0)) return "no loss";
    if (rank == 1) ::raise(SIGKILL);
    try {
      (void)loss(group, part.batch(FeatureKind::clip));
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " of rank " + std::to_string(error.where().rank);
    }
    return "no error";
  });
  EXPECT_EQ(ends[0].output, "peer_lost of rank 1");
  EXPECT_FALSE(ends[1].ended);
  EXPECT_EQ(ends[2].output, "peer_lost of rank 1");
}

}  // namespace
}  // namespace tutti::test
