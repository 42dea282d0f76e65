#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"

// gather, scatter, all_to_all and barrier over a backend without them: the front composes them of
// sends, receives and an all_reduce. Each element encodes its source and destination, so every
// result is known without a second implementation.

namespace tutti::test {
namespace {

using Values = std::vector<std::int32_t>;
using Layout = std::vector<std::int64_t>;

bool is_lowered(Operation o) {
  return o == Operation::gather || o == Operation::scatter || o == Operation::all_to_all ||
         o == Operation::barrier;
}

class Bare final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return !is_lowered(operation) && inner().supports(operation, dtype, reduce);
  }
  Work launch(std::span<const Op> ops, const Call& call) override {
    for (const Op& op : ops)
      if (is_lowered(op.kind)) fail(Errc::backend, "asked for what it has not");
    return inner().launch(ops, call);
  }
};

void on_bare_ranks(const World& world, const std::function<void(ProcessGroup& group)>& body) {
  on_fresh_ranks(world, body, {.adjust = [](GroupOptions& options) {
                   options.decorate = [](std::unique_ptr<Backend> inner) {
                     return std::make_unique<Bare>(std::move(inner));
                   };
                 }});
}

class Lowering : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
class LoweringOfSeveral : public Lowering {};
std::vector<World> local_worlds(int smallest) {
  std::vector<World> all;
  for (const bool checked : {false, true})
    for (int size = smallest; size <= 4; ++size) all.push_back({"local", size, checked});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, Lowering, testing::ValuesIn(local_worlds(1)), CaseName());
INSTANTIATE_TEST_SUITE_P(Worlds, LoweringOfSeveral, testing::ValuesIn(local_worlds(2)), CaseName());

constexpr std::int64_t columns = 3;

std::int64_t total(const Layout& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}
std::int64_t before(const Layout& rows, int rank) {
  return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
}
/// Equal rows, uneven ones, an empty rank, one rank that has them all.
std::vector<Layout> layouts(int size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<Layout> all{Layout(n, 2), Layout(n, 0)};
  Layout uneven(n);
  std::iota(uneven.begin(), uneven.end(), 0);  // Rank 0 is empty.
  all.push_back(uneven);
  Layout last(n, 0);
  last.back() = 5;
  all.push_back(last);
  return all;
}
/// Rows from rank `from` to rank `to`, `rows` of them.
Values block(int from, int to, std::int64_t rows) {
  Values values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 10'000 * (from + 1) + 1'000 * (to + 1) + static_cast<std::int32_t>(i);
  return values;
}
void append(Values& to, const Values& values) {
  to.insert(to.end(), values.begin(), values.end());
}
TensorView array(Values& values) {
  return view(values, {static_cast<std::int64_t>(values.size()) / columns, columns});
}

TEST_P(Lowering, GatherWorksInPlaceOnTheRoot) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    const int rank = group.rank();
    for (const Layout& rows : layouts(size()))
      for (int root = 0; root < size(); ++root) {
        Values whole(static_cast<std::size_t>(total(rows) * columns), -1);
        Values in = block(rank, root, rows[static_cast<std::size_t>(rank)]);
        TensorView part = array(in);
        if (rank == root) {
          auto* own = whole.data() + before(rows, rank) * columns;
          std::ranges::copy(in, own);
          part.data = own;
        }
        group.gather(part, array(whole), root, rows);
        if (rank != root) continue;
        Values want;
        for (int r = 0; r < size(); ++r)
          append(want, block(r, root, rows[static_cast<std::size_t>(r)]));
        EXPECT_EQ(whole, want) << "root " << root;
      }
  });
}

// Calls in flight share the reserved tag of a pair: their messages must not mix.
TEST_P(Lowering, ManyCallsInFlightDoNotMix) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    const int rank = group.rank();
    constexpr int calls = 20;
    std::vector<Values> in(calls);
    std::vector<Values> out(calls);
    std::vector<Work> works;
    for (int c = 0; c < calls; ++c) {
      const auto i = static_cast<std::size_t>(c);
      for (int r = 0; r < size(); ++r) append(in[i], Values(columns, 100 * c + 10 * rank + r));
      out[i].resize(in[i].size());
      works.push_back(group.all_to_all_async(array(in[i]), array(out[i])));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (int c = 0; c < calls; ++c)
      for (int r = 0; r < size(); ++r)
        EXPECT_EQ(out[static_cast<std::size_t>(c)][static_cast<std::size_t>(r * columns)],
                  100 * c + 10 * r + rank);
  });
}

TEST_P(LoweringOfSeveral, LeavesTheTagsOfTheCallerAlone) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    const int rank = group.rank();
    Values mine(columns, rank);
    Values all(static_cast<std::size_t>(size() * columns), -1);
    Values message{42};
    Values received(1);
    Work pending;
    if (rank == 1) pending = group.send_async(message, 0, 0);
    group.gather(array(mine), array(all), 0);
    if (rank == 0) group.recv(received, 1, 0);
    pending.wait();
    if (rank == 0) {
      EXPECT_EQ(received, message);
      for (int r = 0; r < size(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r * columns)], r);
      }
    }
  });
}

TEST_P(LoweringOfSeveral, AMismatchOfCountsIsNamedOnBothSides) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    const int rank = group.rank();
    // Rank 0 sends 5 rows to rank 1, which expects 6.
    Layout send(static_cast<std::size_t>(size()), 1);
    Layout recv(static_cast<std::size_t>(size()), 1);
    if (rank == 0) send[1] = 5;
    if (rank == 1) recv[0] = 6;
    Values in(static_cast<std::size_t>(total(send) * columns));
    Values out(static_cast<std::size_t>(total(recv) * columns));
    const auto call = [&] { group.all_to_all(array(in), array(out), send, recv); };
    if (rank < 2)
      expect_error(Errc::mismatch, {"[5, 3]", "[6, 3]"}, call);
    else
      call();
  });
}

TEST_P(Lowering, SubGroupsAreDecoratedToo) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    auto part = group.split(group.rank() % 2);
    ASSERT_TRUE(part.has_value());
    Values mine(columns, group.rank());
    Values all(static_cast<std::size_t>(part->size() * columns), -1);
    part->gather(array(mine), array(all), 0);
    part->barrier();
    if (part->rank() == 0) {
      for (int r = 0; r < part->size(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r * columns)], group.rank() % 2 + 2 * r);
      }
    }
  });
}

TEST_P(Lowering, WorksInsideACoalesce) {
  on_bare_ranks(world(), [&](ProcessGroup& group) {
    const int rank = group.rank();
    Values mine(columns, rank);
    Values all(static_cast<std::size_t>(size() * columns), -1);
    Values sum(columns, 1);
    Coalesce together(group);
    (void)group.gather_async(array(mine), array(all), 0);
    (void)group.all_reduce_async(array(sum));
    (void)group.barrier_async();
    together.launch().wait();
    EXPECT_EQ(sum, Values(columns, size()));
    if (rank == 0) {
      for (int r = 0; r < size(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r * columns)], r);
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
