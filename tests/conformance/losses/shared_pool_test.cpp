#include "conformance/losses/pool_calls.hpp"

// A caller that keeps the queue passes the pool of all ranks on each of them.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::PoolOptions;

Batch batch_of(const PoolRows& rows, Rows pool_rows) {
  Batch batch{view(std::span(rows.logits), {rows.count(), rows.classes}), rows.targets, rows.iid};
  if (rows.weights) batch.weight = *rows.weights;
  batch.pool_rows = pool_rows;
  return batch;
}

class SharedPool : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SharedPool, testing::ValuesIn(worlds()), CaseName());

TEST_P(SharedPool, GivesTheLossOfOneProcessWithAQueue) {
  for (const bool large : {false, true}) {  // Of the large one the ranks' rows are too uneven.
    const auto queued = make_pool_rows(large ? 300 : 31, 2, 5);
    const auto rows = make_pool_rows(large ? 1300 : 24, 2, 6);
    auto pool = rows;
    pool.append(queued);
    auto kinds = ranking_kinds();
    kinds.push_back(live_kind());
    for (const auto& kind : kinds) {
      SCOPED_TRACE(kind.name);
      const auto own_queue = kind.make(2, {.queue = 400});
      call_pool(*own_queue, nullptr, queued);
      const auto want = call_pool(*own_queue, nullptr, rows);
      on_ranks(GetParam(), [&](ProcessGroup& group) {
        const auto split = pool_split(rows.count(), group.size(), 3);
        group.barrier();
        const auto got = (*kind.make(2, {.gather = false}))(group, batch_of(pool, split));
        group.barrier();
        const auto trace = group.trace();
        std::size_t calls = 0;
        while (trace[trace.size() - 2 - calls].operation != Operation::barrier) ++calls;
        EXPECT_LE(calls, kind.name != "smooth_ap" ? 0U : large ? 2U : 1U);
        EXPECT_NEAR(got.loss, want.loss, 1e-12);
        const auto first = offset(split, group.rank()) * 2;
        const auto last = first + split[index(group.rank())] * 2;
        const auto* grad = static_cast<const double*>(got.grad.data());
        for (std::int64_t i = 0; i < got.grad.shape().numel(); ++i)
          ASSERT_NEAR(
              grad[i],
              i < first || i >= last ? 0 : group.size() * want.grad[static_cast<std::size_t>(i)],
              1e-10);
      });
    }
  }
}

TEST_P(SharedPool, IsSampledAsInOneProcess) {
  const auto pool = make_pool_rows(60, 2, 7);
  const auto loss = [] { return smooth_ap_kind().make(2, {.max_rows = 20, .gather = false}); };
  const auto want = (*loss())(batch_of(pool, 30));
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto got = (*loss())(group, batch_of(pool, pool_split(30, group.size(), 3)));
    EXPECT_NEAR(got.loss, want.loss, 1e-12);
  });
}

TEST_P(SharedPool, PoolsThatDifferAreAMismatchOnAllRanks) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    auto pool = make_pool_rows(60, 1, 7);
    const auto split = pool_split(30, group.size(), 3);
    const bool differs = group.rank() == group.size() - 1 && group.size() > 1;
    if (differs) pool.logits.back() += 1e-3;
    const auto loss = smooth_ap_kind().make(1, {.gather = false});
    if (group.size() == 1) return (void)(*loss)(group, batch_of(pool, split));
    expect_error(Errc::mismatch, {"different pools"},
                 [&] { (void)(*loss)(group, batch_of(pool, split)); });
  });
}

TEST(SharedPoolAlone, PoolRowsThatContradictTheBatchOrTheOptionsAreRefused) {
  const auto rows = make_pool_rows(6, 1, 6);
  const auto refused = [&](const PoolOptions& pool, Rows pool_rows, const char* why) {
    expect_error(Errc::invalid_argument, {why},
                 [&] { (*live_kind().make(1, pool))(batch_of(rows, pool_rows)); });
  };
  refused({}, 6, "gather true");
  refused({.queue = 1, .gather = false}, 6, "queue 1");
  refused({.gather = false}, {3, 3}, "2 entries for 1 ranks");
  refused({.gather = false}, 7, "of the 6 rows of the batch 6 are left");
  refused({.gather = false}, -1, "gives rank 0 -1 rows");
}

}  // namespace
}  // namespace tutti::test
