#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include <random>

#include "conformance/cells.hpp"

// Counts the work and the bytes of a rank in a loss: its share of the work of one process, and no
// bytes beyond the table of docs/losses.md.

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::PAucAtBudget;
using losses::RankingBatch;
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
  RankingBatch part(int rank, int ranks) const {
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

class WorkOfLosses : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WorkOfLosses, testing::ValuesIn(worlds()), CaseName());

template <typename Loss>
void expect_a_share_each(const World& world, const typename Loss::Options& options,
                         std::int64_t count) {
  const OneClassRows rows(count);
  const auto alone = Loss(options)(rows.part(0, 1)).evaluations;
  ASSERT_GT(alone, 0U);
  on_ranks(world, [&](ProcessGroup& group) {
    const auto got = Loss(options)(group, rows.part(group.rank(), group.size())).evaluations;
    const auto ranks = static_cast<std::uint64_t>(group.size());
    EXPECT_LE(static_cast<double>(got), 1.05 * static_cast<double>((alone + ranks - 1) / ranks));
  });
}

// With equal numbers of rows a rank completes the gradient of its own rows.
TEST_P(WorkOfLosses, IsAShareOfWhatOneProcessDoes) {
  // 240 rows on each of 1 to 4 ranks, or a thousand, which are too many to be inlined in a message.
  const std::int64_t small = 240 * GetParam().size;
  const std::int64_t large = (reduced() ? 1056 : 2400) * GetParam().size;
  for (const auto count : {small, large}) {
    SCOPED_TRACE(count);
    expect_a_share_each<SmoothAp>(GetParam(), {}, count);                    // Pairs, or windows.
    expect_a_share_each<SmoothAp>(GetParam(), {.temperature = 0.5}, count);  // Pairs, or cells.
  }
  expect_a_share_each<RecallAtQuantile>(GetParam(), {}, large);
  for (const auto surrogate :
       {PAucAtBudget::Options::Surrogate::trapezoid, PAucAtBudget::Options::Surrogate::pairwise})
    expect_a_share_each<PAucAtBudget>(GetParam(), {.beta = 0.2, .surrogate = surrogate}, large);
}

// Tolerance: 5 % of a share, which is less than 5 % of all rows.
TEST_P(WorkOfLosses, OfSmoothApIsAShareForSlightlyUnevenRows) {
  const World& world = GetParam();
  const OneClassRows rows(1000 * world.size);
  const auto alone = SmoothAp()(rows.part(0, 1)).evaluations;
  on_ranks(world, [&](ProcessGroup& group) {
    // The first rank has 1196 rows (1072 with two ranks); the other ranks share the rest.
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t most = ranks == 1 ? 1000 : ranks == 2 ? 1072 : 1196;
    const std::size_t others = ranks == 1 ? 0 : (1000 * ranks - most) / (ranks - 1);
    const std::size_t begin = group.rank() == 0 ? 0 : most + (index(group.rank()) - 1) * others;
    const auto end =
        index(group.rank()) + 1 == ranks ? 1000 * ranks : most + index(group.rank()) * others;
    const auto got = SmoothAp()(group, {std::span(rows.logits).subspan(begin, end - begin),
                                        std::span(rows.targets).subspan(begin, end - begin)})
                         .evaluations;
    EXPECT_LE(static_cast<double>(got), 1.05 * static_cast<double>((alone + ranks - 1) / ranks));
  });
}

// If the rows are split too unevenly, the ranks compute equal parts of the gradient of Smooth-AP as
// well.
TEST_P(WorkOfLosses, OfSmoothApIsAShareForAnySplit) {
  const World& world = GetParam();
  const OneClassRows rows(1056 * world.size);
  for (const double temperature : {0.01, 0.5}) {
    const auto alone = SmoothAp({.temperature = temperature})(rows.part(0, 1)).evaluations;
    on_ranks(world, [&](ProcessGroup& group) {
      const bool all = group.rank() == group.size() / 2;
      const auto got = SmoothAp({.temperature = temperature})(
                           group, all ? rows.part(0, 1) : rows.part(0, 1 << 20))
                           .evaluations;
      const auto ranks = static_cast<std::uint64_t>(group.size());
      EXPECT_LE(static_cast<double>(got), 1.05 * static_cast<double>((alone + ranks - 1) / ranks));
    });
  }
}

template <typename Loss>
Sent sent_by(Loss loss, ProcessGroup& group, const RankingBatch& batch) {
  const auto before = group.trace().size();
  loss(group, batch);
  return Sent(group, before);
}

TEST_P(WorkOfLosses, SmoothApSendsItsRowsAndThreeNumbersPerAnchor) {
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

TEST_P(WorkOfLosses, RecallAtQuantileSendsNoRows) {
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

TEST_P(WorkOfLosses, FewRowsAreOneMessage) {
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

TEST_P(WorkOfLosses, PAucSendsCountsAndOfPairsTheBand) {
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
