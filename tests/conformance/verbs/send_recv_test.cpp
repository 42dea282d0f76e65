#include <functional>
#include <string>
#include <vector>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class SendRecvData : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, SendRecvData, testing::ValuesIn(move_cells_of_several()),
                         CaseName());

TEST_P(SendRecvData, ReachesEveryOtherRankUnchanged) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  for (const std::int64_t count : counts()) {
    const auto inputs =
        make_inputs(dtype, {count}, world.size, Fill::bits, ReduceOp::Kind::sum, 13);
    on_ranks(world, [&](ProcessGroup& group) {
      const int rank = group.rank();
      const Buffer in(group, inputs[index(rank)]);
      // One sender at a time, blocking.
      for (int from = 0; from < world.size; ++from)
        for (int to = 0; to < world.size; ++to) {
          if (from == to) continue;
          if (rank == from) group.send(in, to);
          if (rank != to) continue;
          const Buffer out(group, dtype, {count});
          group.recv(out, from);
          EXPECT_TRUE(same_bits(out.read(), inputs[index(from)]))
              << "count " << count << " from " << from;
        }
      EXPECT_TRUE(same_bits(in.read(), inputs[index(rank)])) << "the input was changed";
    });
  }
}

class SendRecv : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, SendRecv, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(SendRecv, ARingOfCrossedAsyncCallsDoesNotDeadlock) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int next = (group.rank() + 1) % size;
    const int previous = (group.rank() + size - 1) % size;
    // Every rank sends first.
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    Work sent = group.send_async(in, next);
    Work received = group.recv_async(out, previous);
    sent.wait();
    received.wait();
    EXPECT_TRUE(same(out.read(), message_of(previous)));
    // Every rank receives first.
    const Buffer again(group, DType::i32, {2});
    received = group.recv_async(again, next);
    group.send_async(in, previous).wait();
    received.wait();
    EXPECT_TRUE(same(again.read(), message_of(next)));
  });
}

TEST_P(SendRecv, MessagesOfOneTagArriveInTheOrderInWhichTheyWereSent) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int next = (group.rank() + 1) % size;
    const int previous = (group.rank() + size - 1) % size;
    constexpr int messages = 20;
    std::vector<Buffer> in;
    std::vector<Buffer> out;
    std::vector<Work> works;
    for (int i = 0; i < messages; ++i) {
      in.emplace_back(group, message_of(100 * group.rank() + i));
      out.emplace_back(group, DType::i32, Shape{2});
    }
    for (const Buffer& data : in) works.push_back(group.send_async(data, next, 3));
    for (const Buffer& data : out) works.push_back(group.recv_async(data, previous, 3));
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (int i = 0; i < messages; ++i)
      EXPECT_TRUE(same(out[index(i)].read(), message_of(100 * previous + i))) << "message " << i;
  });
}

TEST_P(SendRecv, ATagIsAChannelOfItsOwn) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int next = (group.rank() + 1) % size;
    const int previous = (group.rank() + size - 1) % size;
    const std::vector<int> tags{0, 1, 2, 1000, 0x7fffffff};
    std::vector<Buffer> in;
    std::vector<Work> works;
    for (const int tag : tags) {
      in.emplace_back(group, message_of(tag));
      works.push_back(group.send_async(in.back(), next, tag));
    }
    // Received in the opposite order.
    for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag) {
      const Buffer out(group, DType::i32, {2});
      group.recv(out, previous, *tag);
      EXPECT_TRUE(same(out.read(), message_of(*tag))) << "tag " << *tag;
    }
    for (Work& work : works) work.wait();
  });
}

TEST_P(SendRecv, BothDirectionsOfAPairAreApart) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int peer = group.rank() ^ 1;
    if (peer >= group.size()) return;
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    Work sent = group.send_async(in, peer, 7);
    group.recv(out, peer, 7);
    sent.wait();
    EXPECT_TRUE(same(out.read(), message_of(peer)));
  });
}

// A rank may be its own peer; a blocking send to itself would wait for ever.
TEST_P(SendRecv, ARankMaySendToItselfAsynchronously) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    Work sent = group.send_async(in, group.rank(), 2);
    group.recv(out, group.rank(), 2);
    sent.wait();
    EXPECT_TRUE(same(out.read(), message_of(group.rank())));
    const Buffer again(group, DType::i32, {2});
    Work received = group.recv_async(again, group.rank(), 2);
    group.send(in, group.rank(), 2);
    received.wait();
    EXPECT_TRUE(same(again.read(), message_of(group.rank())));
  });
}

/// Enough time for a call that does not hang.
TEST_P(SendRecv, ARingOfBothAtOnceDoesNotDeadlock) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int next = (group.rank() + 1) % size;
    const int previous = (group.rank() + size - 1) % size;
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{2}, std::int64_t{1} << 18}) {
      const auto inputs = make_inputs(DType::f32, {count}, size, Fill::bits);
      const Buffer in(group, inputs[index(group.rank())]);
      const Buffer out(group, DType::f32, {count});
      group.sendrecv(in, next, out, previous, 0, soon);
      EXPECT_TRUE(same_bits(out.read(), inputs[index(previous)])) << count << " elements";
      EXPECT_TRUE(same_bits(in.read(), inputs[index(group.rank())])) << "the input was changed";
      const Buffer again(group, DType::f32, {count});
      group.sendrecv_async(in, previous, again, next, 1, soon).wait();
      EXPECT_TRUE(same_bits(again.read(), inputs[index(next)])) << count << " elements, async";
    }
  });
}

// Different dtypes and sizes in each direction, and peers that use the two calls.
TEST_P(SendRecv, BothAtOnceMatchesSendsAndReceives) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array three = array_of<double>({1, 2, 3});
    if (group.rank() == 0) {
      const Buffer in(group, message_of(7));
      const Buffer out(group, DType::f64, {3});
      group.sendrecv(in, 1, out, 1, 6, soon);
      EXPECT_TRUE(same(out.read(), three));
    } else if (group.rank() == 1) {
      const Buffer in(group, three);
      const Buffer out(group, DType::i32, {2});
      Work sent = group.send_async(in, 0, 6, soon);
      group.recv(out, 0, 6, soon);
      sent.wait();
      EXPECT_TRUE(same(out.read(), message_of(7)));
    }
    expect_usable(group);
  });
}

TEST_P(SendRecv, BothAtOnceMayBeWithTheRankItself) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    group.sendrecv(in, group.rank(), out, group.rank(), 3, soon);
    EXPECT_TRUE(same(out.read(), message_of(group.rank())));
  });
}

TEST_P(SendRecv, BothAtOnceInACoalesce) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int peer = group.rank() ^ 1;
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    if (peer >= group.size()) return;
    Coalesce together(group);
    expect_error(Errc::invalid_argument, {"sendrecv", "Coalesce", "sendrecv_async"},
                 [&] { group.sendrecv(in, peer, out, peer); });
    Work work = group.sendrecv_async(in, peer, out, peer, 8, soon);
    together.launch().wait();
    work.wait();
    EXPECT_TRUE(same(out.read(), message_of(peer)));
  });
}

TEST_P(SendRecv, BothAtOnceIsRefusedWithTheNumbers) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int size = group.size();
    const int own = group.rank();
    const Buffer in(group, message_of(own));
    const Buffer out(group, DType::i32, {2});
    const auto expect_bad = [](const std::vector<std::string>& texts,
                               const std::function<void()>& call) {
      expect_error(Errc::invalid_argument, texts, call);
    };
    const auto ranks = "ranks 0 to " + std::to_string(size - 1);
    expect_bad({"send", "peer is " + std::to_string(size), ranks},
               [&] { group.sendrecv(in, size, out, -1); });
    expect_bad({"tag is -2", ">= 0"}, [&] { group.sendrecv(in, own, out, own, -2); });
    // With this rank as peer, so that no other rank gets an error.
    expect_bad({"in and out overlap", "sendrecv does not work in place"},
               [&] { group.sendrecv(out, own, out, own, 9); });
    const TensorView nothing(nullptr, DType::i32, {2}, group.memory().device());
    expect_bad({"recv", "data is null"}, [&] { group.sendrecv(in, own, nothing, own, 9); });
    expect_bad({"timeout is -1 ns"},
               [&] { group.sendrecv_async(in, own, out, own, 9, {.timeout = -1ns}).wait(); });
    expect_usable(group);
  });
}

TEST_P(SendRecv, ShapesMayDifferWhereTheCountIsEqual) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array six = make_input(DType::i32, {6}, 0, 1, Fill::bits);
    if (group.rank() == 0) {
      const Buffer in(group, six);
      group.send(in, 1);
    } else if (group.rank() == 1) {
      const Buffer out(group, DType::i32, {2, 3});
      group.recv(out, 0);
      EXPECT_TRUE(same_bits(out.read().reshaped({6}), six));
    }
  });
}

TEST_P(SendRecv, DoesNotQueueBehindAPendingCollective) {
  on_ranks(world(), [](ProcessGroup& group) {
    if (group.rank() == 1) {
      // Enters the collective after a message from rank 0, whose call is pending by then.
      const Buffer out(group, DType::i32, {2});
      group.recv(out, 0, 4);
      EXPECT_TRUE(same(out.read(), message_of(42)));
      group.barrier();
      return;
    }
    Work pending = group.barrier_async();
    if (group.rank() == 0) {
      const Buffer in(group, message_of(42));
      group.send(in, 1, 4);
    }
    pending.wait();
  });
}

TEST_P(SendRecv, CollectivesAndPointToPointDoNotShareNumbers) {
  on_ranks(world(), [](ProcessGroup& group) {
    // Only two ranks make these calls; the other ranks number their collectives without them.
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == 0) {
        const Buffer in(group, message_of(i));
        group.send(in, 1);
      } else if (group.rank() == 1) {
        const Buffer out(group, DType::i32, {2});
        group.recv(out, 0);
        EXPECT_TRUE(same(out.read(), message_of(i)));
      }
      expect_usable(group);
    }
  });
}

}  // namespace
}  // namespace tutti::test
