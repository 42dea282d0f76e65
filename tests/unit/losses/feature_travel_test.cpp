#include <map>

#include <gtest/gtest.h>

#include <tutti/trace.hpp>

#include "unit/losses/feature_calls.hpp"

// What a rank sends in a loss over features: its features once, a few numbers for each row, and the
// gradients of rows that it computed for another rank.

namespace tutti::test {
namespace {

/// Bytes of a rank's calls, and their number, by operation.
using FeatureTraffic = std::map<Operation, std::pair<int, std::int64_t>>;

template <typename T>
FeatureTraffic feature_traffic(ProcessGroup& group, const FeatureSetup& setup,
                               const FeaturePart<T>& part) {
  const auto loss = make_feature_loss(setup);
  const auto before = group.trace().size();
  (void)(*loss)(group, part.batch(setup.kind));
  const auto trace = group.trace();
  FeatureTraffic traffic;
  for (std::size_t i = before; i < trace.size(); ++i) {
    auto& [calls, bytes] = traffic[trace[i].operation];
    ++calls;
    bytes += trace[i].bytes;
  }
  return traffic;
}

constexpr std::int64_t rows_of_rank = 256;  // Two blocks; 80 floats a row are too many to inline.
constexpr std::int64_t travel_dims = 80;

/// Rows of two ranks: as many on each, or all but one on the first.
void on_two_ranks(
    bool even,
    const std::function<void(ProcessGroup& group, std::int64_t first, std::int64_t count)>& body) {
  on_fresh_ranks({"local", 2}, [&](ProcessGroup& group) {
    const auto first = even ? rows_of_rank : 2 * rows_of_rank - 1;
    group.rank() == 0 ? body(group, 0, first) : body(group, first, 2 * rows_of_rank - first);
  });
}

FeatureCall travel_call() {
  std::mt19937_64 random(1);
  return make_feature_call(random, 2 * rows_of_rank, travel_dims, 20, false, false);
}

TEST(FeatureTravel, FeaturesOnceAndTwoOrThreeNumbersForEachRow) {
  const auto call = travel_call();
  on_two_ranks(true, [&](ProcessGroup& group, std::int64_t first, std::int64_t count) {
    const FeaturePart<float> part(call, first, count);
    constexpr std::int64_t features = rows_of_rank * travel_dims * 4;
    constexpr std::int64_t number = rows_of_rank * 8;
    const auto expect = [&](FeatureKind kind, int gathers, std::int64_t bytes) {
      const auto traffic = feature_traffic(group, {.kind = kind}, part);
      EXPECT_EQ(traffic.size(), 2U);  // No all_to_all.
      EXPECT_EQ(traffic.at(Operation::all_gather_bounded).first, 1);
      EXPECT_LE(traffic.at(Operation::all_gather_bounded).second, 300);
      EXPECT_EQ(traffic.at(Operation::all_gather), (std::pair{gathers, bytes}));
    };
    // Log-sum-exps and parts of the derivative by the scale.
    expect(FeatureKind::clip, 4, 2 * features + 2 * number + 2 * number);
    // Parts of the derivatives by scale and bias, and of the loss.
    expect(FeatureKind::siglip, 3, 2 * features + 3 * 2 * number);
    // Labels; a log-sum-exp and the positives' logits.
    expect(FeatureKind::sup_con, 4, features + number + 2 * number + number);
  });
}

TEST(FeatureTravel, GradientsOfRowsThatWereComputedForAnotherRankGoBackInTheirDtype) {
  const auto call = travel_call();
  on_two_ranks(false, [&](ProcessGroup& group, std::int64_t first, std::int64_t count) {
    const FeaturePart<BFloat16> part(call, first, count);
    const auto traffic = feature_traffic(group, {.kind = FeatureKind::clip}, part);
    // Each rank computes half of the rows; those of rank 1 belong to rank 0, but one.
    EXPECT_EQ(traffic.at(Operation::all_to_all),
              (std::pair{2, 2 * rows_of_rank * travel_dims * std::int64_t{2}}));
  });
}

}  // namespace
}  // namespace tutti::test
