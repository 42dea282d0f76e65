#include <tutti/pending.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/coalesce.hpp>
#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

// Async gathers: the rows travel after the function has returned.

namespace tutti::test {
namespace {

class GatherPending : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherPending, testing::ValuesIn(worlds()), CaseName());

class GatherPendingOfSeveral : public GatherPending {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherPendingOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

/// Calls that other ranks have not made yet. On a device checked mode compares within the call.
class PendingGathers : public GatherPending {};
INSTANTIATE_TEST_SUITE_P(Worlds, PendingGathers, testing::ValuesIn(worlds_of_several()),
                         CaseName());

void expect_same(ProcessGroup& group, const GatheredRows& got, const GatheredRows& want) {
  EXPECT_TRUE(same_bits(content_of(group, got.data), content_of(group, want.data)));
  EXPECT_EQ(got.rows, want.rows);
}

TEST_P(GatherPending, GivesWhatTheBlockingFormGives) {
  std::uint64_t salt = 0;
  // Rows of 80 KB are never inlined.
  for (const Shape& row_shape : {Shape{}, Shape{3}, Shape{20000}})
    for (const Layout& layout : layouts(size())) {
      const auto parts = make_parts(DType::f32, layout, row_shape, ++salt);
      const auto wholes = make_inputs(DType::f32, rows_of(total(layout), row_shape), size(),
                                      Fill::exact, ReduceOp::Kind::sum, salt);
      const RowLayout rows(layout);
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape));
        const Buffer in(group, parts[index(group.rank())]);
        const Buffer whole(group, wholes[index(group.rank())]);
        const int root = group.size() - 1;
        for (const RowLayout& known : {RowLayout(), rows}) {
          SCOPED_TRACE(known.ranks() == 0 ? "without rows" : "with rows");
          auto all = all_gather_rows_async(group, in, known);
          auto padded = all_gather_padded_async(group, in, 7, known);
          auto at_root = gather_rows_async(group, in, root, known);
          auto sums = reduce_scatter_rows_async(group, whole, rows);
          // Waits in another order than that of the calls.
          const Tensor sum = sums.get();
          const GatheredRows rooted = at_root.get();
          const PaddedRows blocks = padded.get();
          const GatheredRows gathered = all.get();
          EXPECT_TRUE(same_bits(content_of(group, gathered.data), concat(parts)));
          EXPECT_EQ(gathered.rows, rows);
          expect_same(group, rooted, gather_rows(group, in, root, known));
          const PaddedRows want = all_gather_padded(group, in, 7, known);
          EXPECT_TRUE(same_bits(content_of(group, blocks.data), content_of(group, want.data)));
          EXPECT_EQ(blocks.rows, rows);
          const Tensor want_sum = reduce_scatter_rows(group, whole, rows);
          EXPECT_TRUE(same_bits(content_of(group, sum), content_of(group, want_sum)));
        }
      });
    }
}

TEST_P(PendingGathers, WithALayoutNothingWaits) {
  on_ranks(world(), [](ProcessGroup& group) {
    expect_usable(group);  // Devices connect at the first call.
    const auto rows = RowLayout::equal(group.size(), 2);
    const Buffer in(group, array_of<float>({1, 2}));
    const Buffer whole(group, DType::f32, {2 * group.size()});
    const Buffer token(group, array_of<float>({3}));
    // Makes its calls after rank 0 has made all of them.
    if (group.rank() == 1) group.recv(token, 0, 4, soon);
    auto all = all_gather_rows_async(group, in, rows, soon);
    auto padded = all_gather_padded_async(group, in, 0, rows, soon);
    auto at_root = gather_rows_async(group, in, 0, rows, soon);
    auto sums = reduce_scatter_rows_async(group, whole, rows, ReduceOp::max, soon);
    if (group.rank() == 0) {
      EXPECT_FALSE(all.done());
      group.send(token, 1, 4, soon);
    }
    EXPECT_EQ(all.get().data.shape(), Shape{2 * group.size()});
    EXPECT_EQ(padded.get().data.shape(), (Shape{group.size(), 2}));
    (void)at_root.get();
    EXPECT_EQ(sums.get().shape(), Shape{2});
  });
}

TEST_P(GatherPending, GivesItsValueOnceAndMayBeMovedAndDropped) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto rows = RowLayout::equal(group.size(), 1);
    const Buffer in(group, array_of<float>({1}));
    auto first = all_gather_rows_async(group, in, rows);
    first = all_gather_rows_async(group, in, rows);
    auto moved = std::move(first);
    EXPECT_TRUE(moved.wait_until(Deadline::none()));
    EXPECT_EQ(moved.get().data.shape(), Shape{group.size()});
    expect_error(Errc::invalid_argument,
                 {"Pending::get() was already called; it returns the result once"},
                 [&] { (void)moved.get(); });
    { const auto dropped = all_gather_padded_async(group, in, 0, rows); }
    expect_usable(group);
  });
}

TEST_P(GatherPending, IsRefusedInsideACoalesce) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto rows = RowLayout::equal(group.size(), 1);
    const Buffer in(group, array_of<float>({1}));
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"all_gather_rows_async", "Coalesce", "launch()"},
                   [&] { (void)all_gather_rows_async(group, in, rows); });
      expect_error(Errc::invalid_argument, {"launch()"},
                   [&] { (void)all_to_all_rows_async(group, in, Rows(1)); });
    }
    expect_usable(group);
  });
}

TEST_P(GatherPending, RefusalsAreThrownByTheCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer in(group, array_of<std::int32_t>({1, 2}));
    const auto more = RowLayout::equal(group.size(), 3);
    const auto expect_bad = [&](const std::vector<std::string>& texts, const auto& call) {
      expect_error(Errc::invalid_argument, texts, call);
    };
    const std::string says = "the argument rows gives 3 for rank " + std::to_string(group.rank());
    expect_bad({says}, [&] { (void)all_gather_rows_async(group, in, more); });
    expect_bad({says}, [&] { (void)all_gather_padded_async(group, in, 0, more); });
    expect_bad({says}, [&] { (void)gather_rows_async(group, in, 0, more); });
    expect_bad({"send_rows"}, [&] { (void)all_to_all_rows_async(group, in, Rows(5)); });
    expect_bad({"add up to"}, [&] { (void)reduce_scatter_rows_async(group, in, more); });
    expect_bad({"fill 0.5 is not a value of i32"},
               [&] { (void)all_gather_padded_async(group, in, 0.5); });
    expect_bad({"root is -1"}, [&] { (void)gather_rows_async(group, in, -1); });
    expect_bad({"timeout is -1 ns"},
               [&] { (void)all_gather_rows_async(group, in, {}, {.timeout = -1ns}); });
    expect_usable(group);
  });
}

TEST_P(GatherPendingOfSeveral, WhatRanksDisagreeAboutIsThrownByTheCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const bool other = group.rank() == 0;
    const Buffer in(group, other ? DType::f64 : DType::f32, {2});
    expect_error(Errc::mismatch, {"f32", "f64"}, [&] { (void)all_gather_rows_async(group, in); });
    expect_error(Errc::mismatch, {"f32", "f64"},
                 [&] { (void)all_gather_padded_async(group, in, 0); });
    expect_error(Errc::mismatch, {"f32", "f64"}, [&] { (void)gather_rows_async(group, in, 0); });
    expect_usable(group);
  });
}

TEST_P(PendingGathers, ATimeoutIsThrownByGet) {
  RankBarrier barrier(size());
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    expect_usable(group);  // Devices connect at the first call.
    barrier.wait();
    if (group.rank() != size() - 1) {
      const auto rows = RowLayout::equal(group.size(), 2);
      const Buffer in(group, array_of<float>({1, 2}));
      auto all = all_gather_rows_async(group, in, rows, {.timeout = 100ms});
      expect_error({Errc::timeout, Errc::peer_lost, Errc::aborted}, {"all_gather"},
                   [&] { (void)all.get(); });
      expect_error(Errc::invalid_argument, {"was already called"}, [&] { (void)all.get(); });
    }
    barrier.wait();
  });
}

}  // namespace
}  // namespace tutti::test
