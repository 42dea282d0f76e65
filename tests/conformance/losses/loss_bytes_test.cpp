#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include <random>

#include "conformance/cells.hpp"

// Counts the calls and bytes of a rank in a loss: none beyond the table of docs/losses.md.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::PAucAtBudget;
using losses::PoolOptions;
using losses::RecallAtQuantile;
using losses::SmoothAp;

/// One class in float; the first `positives` rows of every 16 are positive.
struct OneClassRows {
  std::vector<float> logits;
  std::vector<std::int64_t> targets;

  explicit OneClassRows(std::int64_t count, std::int64_t positives = 4) {
    std::mt19937_64 random(3);
    std::normal_distribution<float> score;
    for (std::int64_t i = 0; i < count; ++i) {
      logits.push_back(score(random));
      targets.push_back(i % 16 < positives ? 1 : 0);
    }
  }
  Batch part(int rank, int ranks) const {
    const auto n = logits.size() / index(ranks);
    return {std::span(logits).subspan(index(rank) * n, n),
            std::span(targets).subspan(index(rank) * n, n)};
  }
};

/// Bytes of the group's calls since call `calls`, by operation.
struct Sent {
  std::vector<std::int64_t> bytes = std::vector<std::int64_t>(operation_count);
  std::int64_t calls = 0;

  explicit Sent(const ProcessGroup& group, std::size_t before = 0) {
    const auto trace = group.trace();
    for (std::size_t i = before; i < trace.size(); ++i) {
      bytes[static_cast<std::size_t>(trace[i].operation)] += trace[i].bytes;
      ++calls;
    }
  }
  std::int64_t of(Operation operation) const { return bytes[static_cast<std::size_t>(operation)]; }
};

class BytesOfLosses : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BytesOfLosses, testing::ValuesIn(worlds()), CaseName());

template <typename Loss>
Sent sent_by(Loss loss, ProcessGroup& group, const Batch& batch) {
  const auto before = group.trace().size();
  loss(group, batch);
  return Sent(group, before);
}

TEST_P(BytesOfLosses, SmoothApSendsItsRowsAndThreeNumbersPerAnchor) {
  const World& world = GetParam();
  const std::int64_t each = 8000;  // 96,000 bytes: more than the limit of inlined rows.
  const OneClassRows rows(each * world.size);
  on_fresh_ranks(world, [&](ProcessGroup& group) {
    const auto sent = sent_by(SmoothAp(), group, rows.part(group.rank(), group.size()));
    const auto anchors = each / 4;
    // A score and a target per row, three doubles per anchor, and the row counts.
    EXPECT_EQ(sent.of(Operation::all_gather), each * (4 + 8) + anchors * 24);
    EXPECT_LE(sent.of(Operation::all_gather_bounded), 1024);
    EXPECT_EQ(sent.calls, 4);
  });
}

TEST_P(BytesOfLosses, APoolOnEveryRankIsNotSent) {
  const OneClassRows rows(400);
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    auto pool = rows.part(0, 1);
    pool.pool_rows = 400 / group.size();
    const PoolOptions options{.gather = false};
    const auto sent = sent_by(SmoothAp({.pool = options}), group, pool);
    const std::int64_t anchors = 400 / 4;  // Of all ranks.
    EXPECT_NEAR(static_cast<double>(sent.of(Operation::all_gather)),
                static_cast<double>(anchors * 24) / group.size(), 48);
    EXPECT_EQ(sent.calls, 1);
    EXPECT_EQ(sent_by(RecallAtQuantile({.pool = options}), group, pool).calls, 0);
  });
}

TEST_P(BytesOfLosses, RecallAtQuantileSendsNoRows) {
  const World& world = GetParam();
  for (const std::int64_t each : {1600, 16000}) {
    const OneClassRows rows(each * world.size);
    on_fresh_ranks(world, [&](ProcessGroup& group) {
      const auto sent = sent_by(RecallAtQuantile(), group, rows.part(group.rank(), group.size()));
      // Four times 256 counts; counts of rows, iid rows and live rows, of two kinds each, and of
      // each rank; one sum.
      EXPECT_EQ(sent.of(Operation::all_reduce), 4 * 256 * 8 + (6 + group.size()) * 8 + 8);
      EXPECT_LE(sent.of(Operation::all_gather_bounded), 1024);
      EXPECT_EQ(sent.calls, 7);
    });
  }
}

TEST_P(BytesOfLosses, FewRowsAreOneMessage) {
  const World& world = GetParam();
  const OneClassRows rows(16 * world.size);
  on_fresh_ranks(world, [&](ProcessGroup& group) {
    if (group.size() == 1) return;
    const auto mine = rows.part(group.rank(), group.size());
    EXPECT_EQ(sent_by(RecallAtQuantile(), group, mine).calls, 1);
    EXPECT_EQ(sent_by(PAucAtBudget({.beta = 0.5}), group, mine).calls, 1);
    EXPECT_EQ(sent_by(SmoothAp(), group, mine).calls, 2);
  });
}

TEST_P(BytesOfLosses, PAucSendsCountsAndOfPairsTheBand) {
  const World& world = GetParam();
  const std::int64_t each = 1600;
  const OneClassRows rows(each * world.size);
  on_fresh_ranks(world, [&](ProcessGroup& group) {
    if (group.size() == 1) return;
    const auto mine = rows.part(group.rank(), group.size());
    // The positions of alpha and beta, which are also the knots, and of 0.75 and 0.25.
    const auto counts = 4 * 4 * 256 * 8;
    const auto kinds = (6 + group.size()) * 8;
    auto sent = sent_by(PAucAtBudget({.beta = 0.5}), group, mine);
    EXPECT_EQ(sent.of(Operation::all_reduce), counts + kinds + 3 * 8);
    EXPECT_EQ(sent.of(Operation::all_gather), 0);
    // Pairwise: class and score of the band's rows, half of the negatives, and a sum for each.
    sent = sent_by(
        PAucAtBudget({.beta = 0.5, .surrogate = PAucAtBudget::Options::Surrogate::pairwise}), group,
        mine);
    const auto band = rows.logits.size() * 3 / 4 / 2;
    EXPECT_NEAR(static_cast<double>(sent.of(Operation::all_reduce)),
                static_cast<double>(counts + kinds + 3 * 8) + 8 * static_cast<double>(band),
                8.0 * 2);
  });
}

}  // namespace
}  // namespace tutti::test
