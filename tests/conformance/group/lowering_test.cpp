#include <atomic>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// A backend with only the operations that every transport has. The front composes gather, scatter,
// all_to_all and barrier of them; results, errors and order stay the same.

namespace tutti::test {
namespace {

class WithoutComposites final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    switch (operation) {
      case Operation::gather:
      case Operation::scatter:
      case Operation::all_to_all:
      case Operation::barrier:
        return false;
      case Operation::all_reduce:
        return dtype != DType::f64 && ForwardingBackend::supports(operation, dtype, reduce);
      default:
        return ForwardingBackend::supports(operation, dtype, reduce);
    }
  }
};

class Lowering : public testing::TestWithParam<World> {
 protected:
  void on_plain_ranks(const std::function<void(ProcessGroup&)>& body) const {
    on_fresh_ranks(
        GetParam(), body, {.adjust = [](GroupOptions& options) {
          options.decorate = [](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
            return std::make_unique<WithoutComposites>(std::move(inner));
          };
        }});
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Lowering, testing::ValuesIn(worlds()), CaseName());

TEST_P(Lowering, GatherKeepsRankOrder) {
  on_plain_ranks([](ProcessGroup& group) {
    for (const Layout& layout : layouts(group.size())) {
      const auto parts = make_parts(DType::i32, layout, {3});
      const Array want = concat(parts);
      for (int root = 0; root < group.size(); ++root) {
        SCOPED_TRACE("rows " + to_string(layout) + ", root " + std::to_string(root));
        const Buffer in(group, parts[index(group.rank())]);
        const Buffer out(group, DType::i32, want.shape());
        const Buffer later(group, DType::i32, want.shape());
        const Buffer whole(group, want);
        const int rank = group.rank();
        group.gather(in, out, root, layout);
        group.gather_async(in, later, root, layout).wait();
        group.gather(
            rank == root ? whole.rows(offset(layout, rank), layout[index(rank)]) : in.view(), whole,
            root, layout);
        if (rank != root) continue;
        EXPECT_TRUE(same(out.read(), want));
        EXPECT_TRUE(same(later.read(), want)) << "asynchronously";
        EXPECT_TRUE(same(whole.read(), want)) << "in place";
      }
    }
  });
}

TEST_P(Lowering, ScatterGivesEachRankItsRows) {
  on_plain_ranks([](ProcessGroup& group) {
    for (const Layout& layout : layouts(group.size())) {
      const auto parts = make_parts(DType::i32, layout, {3}, 1);
      for (int root = 0; root < group.size(); ++root) {
        SCOPED_TRACE("rows " + to_string(layout) + ", root " + std::to_string(root));
        const Array& want = parts[index(group.rank())];
        const Buffer in(group, concat(parts));
        const Buffer out(group, DType::i32, want.shape());
        group.scatter(group.rank() == root ? in.view() : TensorView(), out, root, layout);
        EXPECT_TRUE(same(out.read(), want));
        // In place on the root.
        const int rank = group.rank();
        const Buffer part(group, DType::i32, want.shape());
        group.scatter(
            in, rank == root ? in.rows(offset(layout, rank), layout[index(rank)]) : part.view(),
            root, layout);
        if (rank != root) {
          EXPECT_TRUE(same(part.read(), want)) << "in place";
        }
      }
    }
  });
}

TEST_P(Lowering, AllToAllExchangesTheBlocks) {
  on_plain_ranks([](ProcessGroup& group) {
    const int size = group.size();
    const int rank = group.rank();
    // Rank i sends i + j rows to rank j: none from 0 to itself.
    Layout rows;
    for (int peer = 0; peer < size; ++peer) rows.push_back(rank + peer);
    std::vector<Array> sent;
    std::vector<Array> received;
    for (int peer = 0; peer < size; ++peer) {
      const auto block = [&](int from, int to) {
        return make_input(DType::i32, {from + to, 2}, size * from + to, 1, Fill::bits);
      };
      sent.push_back(block(rank, peer));
      received.push_back(block(peer, rank));
    }
    const Buffer in(group, concat(sent));
    const Buffer out(group, DType::i32, {total(rows), 2});
    group.all_to_all(in, out, rows, rows);
    EXPECT_TRUE(same(out.read(), concat(received)));
  });
}

TEST_P(Lowering, NoRankLeavesABarrierBeforeAllHaveEntered) {
  std::atomic<int> entered = 0;
  on_plain_ranks([&](ProcessGroup& group) {
    for (int round = 1; round <= 10; ++round) {
      entered.fetch_add(1);
      group.barrier();
      EXPECT_GE(entered.load(), round * group.size());
    }
  });
}

// Calls in flight share the reserved tag of a pair: their messages must not mix.
TEST_P(Lowering, ManyCallsInFlightDoNotMix) {
  on_plain_ranks([](ProcessGroup& group) {
    const int size = group.size();
    const int rank = group.rank();
    constexpr int calls = 20;
    std::vector<Array> wanted;
    std::vector<Buffer> in;
    std::vector<Buffer> out;
    std::vector<Work> works;
    for (int call = 0; call < calls; ++call) {
      std::vector<Array> sent;
      std::vector<Array> received;
      for (int peer = 0; peer < size; ++peer) {
        sent.push_back(number(100 * call + 10 * rank + peer));
        received.push_back(number(100 * call + 10 * peer + rank));
      }
      wanted.push_back(concat(received));
      in.emplace_back(group, concat(sent));
      out.emplace_back(group, DType::i32, Shape{size});
      works.push_back(group.all_to_all_async(in.back(), out.back()));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (std::size_t i = 0; i < calls; ++i) EXPECT_TRUE(same(out[i].read(), wanted[i])) << i;
  });
}

TEST_P(Lowering, LeavesTheTagsOfTheCallerAlone) {
  on_plain_ranks([](ProcessGroup& group) {
    if (group.size() == 1) return;
    const Buffer all(group, DType::i32, {group.size()});
    const Buffer received(group, number(0));
    const Buffer message(group, number(42));
    Work pending;
    if (group.rank() == 1) pending = group.send_async(message, 0, 0);
    group.gather(Buffer(group, number(7)), all, 0);
    if (group.rank() == 0) group.recv(received, 1, 0);
    pending.wait();
    if (group.rank() != 0) return;
    EXPECT_TRUE(same(received.read(), number(42)));
    EXPECT_TRUE(same(all.read(), concat(std::vector(index(group.size()), number(7)))));
  });
}

TEST_P(Lowering, WorksInsideACoalesceOfASubGroup) {
  on_plain_ranks([](ProcessGroup& group) {
    auto part = group.split(group.rank() % 2);
    ASSERT_TRUE(part.has_value());
    const int size = part->size();
    const Buffer mine(*part, number(group.rank()));
    const Buffer all(*part, DType::i32, {size});
    const Buffer sum(*part, number(1));
    Coalesce together(*part);
    (void)part->gather_async(mine, all, 0);
    (void)part->all_reduce_async(sum);
    (void)part->barrier_async();
    together.launch().wait();
    EXPECT_TRUE(same(sum.read(), number(size)));
    if (part->rank() != 0) return;
    std::vector<Array> want;
    for (int r = 0; r < size; ++r) want.push_back(number(group.rank() + 2 * r));
    EXPECT_TRUE(same(all.read(), concat(want)));
  });
}

// The calls of a group take effect in the order in which they were made, however they are composed.
TEST_P(Lowering, AGatherSeesWhatThePendingCallBeforeItGives) {
  RankBarrier issued(GetParam().size);
  on_plain_ranks([&](ProcessGroup& group) {
    const int size = group.size();
    const Buffer data(group, array_of<std::int32_t>({1}));
    const Buffer all(group, DType::i32, {size});
    // The other ranks issue both calls before rank 0 starts the first.
    if (group.rank() == 0) issued.wait();
    Work first = group.all_reduce_async(data);
    Work second = group.gather_async(data, all, 0);
    if (group.rank() != 0) issued.wait();
    second.wait();
    first.wait();
    if (group.rank() == 0) {
      EXPECT_TRUE(
          same(all.read(), concat(std::vector(index(size), array_of<std::int32_t>({size})))));
    }
  });
}

TEST_P(Lowering, WhatCannotBeMadeOfAnythingElseIsUnsupported) {
  on_plain_ranks([](ProcessGroup& group) {
    const Buffer data(group, DType::f64, {4});
    EXPECT_FALSE(group.supports(Operation::all_reduce, DType::f64));
    expect_error(Errc::unsupported, {"all_reduce", "f64", group.backend()},
                 [&] { group.all_reduce(data); });
    expect_usable(group);
  });
}

class LoweringCompared : public Lowering {};
INSTANTIATE_TEST_SUITE_P(Worlds, LoweringCompared, testing::ValuesIn(worlds_that_refuse()),
                         CaseName());

TEST_P(LoweringCompared, ARefusedCallIsToldToThePeers) {
  on_plain_ranks([&](ProcessGroup& group) {
    const int size = group.size();
    const Buffer in(group, array_of<std::int32_t>({group.rank(), 5}));
    const Buffer out(group, DType::i32, {2 * size});
    // Ranks that wait for rank 1 get the error; the other ranks do not.
    const auto expect_refusal = [&](const std::function<void()>& call) {
      if (group.rank() == 1)
        expect_error(Errc::invalid_argument, {"null"}, call);
      else if (group.rank() == 0)
        expect_error(Errc::mismatch, {"rank 1", "refused", "null"}, call);
      else
        call();
    };
    const TensorView null(nullptr, DType::i32, {2}, group.memory().device());
    const TensorView part = group.rank() == 1 ? null : in.view();
    expect_refusal([&] { group.gather(part, out, 0); });
    // A batch of messages ends as a whole: after a failure in the transport the group is broken.
    if (shares_fate(GetParam().backend)) return;
    expect_refusal([&] { group.scatter(out, part, 0); });
    expect_usable(group);
  });
}

TEST_P(LoweringCompared, RowsThatContradictAreNamedOnBothSides) {
  if (shares_fate(GetParam().backend)) return;  // A batch that fails breaks the group.
  on_plain_ranks([](ProcessGroup& group) {
    // Rank 0 sends 5 rows to rank 1, which expects 6.
    Layout send(index(group.size()), 1);
    Layout recv(index(group.size()), 1);
    if (group.rank() == 0) send[1] = 5;
    if (group.rank() == 1) recv[0] = 6;
    const Buffer in(group, DType::i32, {total(send), 3});
    const Buffer out(group, DType::i32, {total(recv), 3});
    const auto call = [&] { group.all_to_all(in, out, send, recv); };
    if (group.rank() < 2)
      expect_error(Errc::mismatch, {"[5, 3]", "[6, 3]"}, call);
    else
      call();
  });
}

}  // namespace
}  // namespace tutti::test
