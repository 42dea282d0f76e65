#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <tutti/autograd.hpp>
#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// recv from any_peer: every backend either does it, or refuses it by name.

namespace tutti::test {
namespace {

/// Enough for a call that does not hang.
bool able(const ProcessGroup& group) {
  return group.supports(Operation::recv_any, DType::i32);
}

class ReceiveFromAny : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  /// Runs `body` where the backend receives from any rank. The case below is for the others.
  void on_able_ranks(const std::function<void(ProcessGroup&)>& body, bool fresh = false) const {
    const auto run = [&](ProcessGroup& group) {
      if (able(group)) body(group);
    };
    fresh ? on_fresh_ranks(world(), run) : on_ranks(world(), run);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ReceiveFromAny, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(ReceiveFromAny, IsRefusedByNameWhereTheBackendCannot) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer out(group, DType::i32, {2});
    EXPECT_EQ(able(group), group.supports(Operation::recv_any, DType::f64));
    if (!able(group)) {
      const std::vector<std::string> texts{"recv", "'" + group.backend() + "'", "any_peer",
                                           "name the peer", "can: "};
      expect_error(Errc::unsupported, texts, [&] { (void)group.recv(out, any_peer, 1, soon); });
      expect_error(Errc::unsupported, texts,
                   [&] { group.recv_async(out, any_peer, 1, soon).wait(); });
    }
    expect_usable(group);  // No peer has been told of anything.
  });
}

TEST_P(ReceiveFromAny, OnlyRecvTakesIt) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, message_of(1));
    const Buffer out(group, DType::i32, {2});
    const auto refuse = [](const std::vector<std::string>& texts, const auto& call) {
      expect_error(Errc::invalid_argument, texts, call);
    };
    refuse({"send: ", "any_peer", "only recv"}, [&] { group.send(data, any_peer, 1, soon); });
    refuse({"recv", "one rank", "any_peer"},
           [&] { (void)autograd::recv(group, {2}, DType::f32, any_peer); });
    refuse({"recv", "tag is -3; it must be >= 0"},
           [&] { (void)group.recv(out, any_peer, -3, soon); });
    refuse({"recv", "peer is -1", "; any_peer receives from any rank"},
           [&] { (void)group.recv(out, -1, 1, soon); });
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, GivesTheSenderWithItsData) {
  on_able_ranks([](ProcessGroup& group) {
    const int size = group.size();
    if (group.rank() != 0) {
      const Buffer in(group, message_of(group.rank()));
      group.send(in, 0, 3, soon);
      return;
    }
    std::set<int> sources;
    for (int i = 1; i < size; ++i) {
      const Buffer out(group, DType::i32, {2});
      const int source = group.recv(out, any_peer, 3, soon);
      EXPECT_TRUE(same(out.read(), message_of(source))) << "from " << source;
      sources.insert(source);
    }
    EXPECT_EQ(std::ssize(sources), size - 1);
    EXPECT_EQ(sources.count(0), 0U);
  });
}

TEST_P(ReceiveFromAny, AsyncReceivesWriteTheSourceBeforeTheyEnd) {
  on_able_ranks([](ProcessGroup& group) {
    const int size = group.size();
    std::vector<Buffer> out;
    std::vector<int> sources(index(size), any_peer);
    std::vector<Work> works;
    for (int i = 0; i < size; ++i) {
      out.emplace_back(group, DType::i32, Shape{2});
      works.push_back(group.recv_async(out.back(), any_peer, 4, soon, &sources[index(i)]));
    }
    const Buffer in(group, message_of(group.rank()));
    std::vector<Work> sent;
    for (int to = 0; to < size; ++to) sent.push_back(group.send_async(in, to, 4, soon));
    for (int i = 0; i < size; ++i) {
      works[index(i)].wait();
      EXPECT_TRUE(same(out[index(i)].read(), message_of(sources[index(i)]))) << "receive " << i;
    }
    for (Work& work : sent) work.wait();
    std::ranges::sort(sources);
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(sources[index(rank)], rank);
  });
}

TEST_P(ReceiveFromAny, OfAPeerThatIsNamedTheSourceIsThatPeer) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    int source = any_peer;
    Work received = group.recv_async(out, previous, 5, soon, &source);
    Work sent = group.send_async(in, next, 5, soon);
    received.wait();
    sent.wait();
    EXPECT_EQ(source, previous);
    Work again = group.send_async(in, next, 5, soon);
    EXPECT_EQ(group.recv(out, previous, 5, soon), previous);
    again.wait();
  });
}

/// A small send over tcp and ucx is over before its receive is known, except in checked mode.
bool sends_wait(const World& world) {
  return (world.backend != "tcp" && world.backend != "ucx") || world.checked;
}

// Receives match in the order in which they were made, and the sends of one sender in theirs.
TEST_P(ReceiveFromAny, MixesWithReceivesFromANamedPeer) {
  on_able_ranks([](ProcessGroup& group) {
    if (group.rank() == 1) {
      for (int i = 0; i < 6; ++i) {
        const Buffer in(group, message_of(i));
        group.send(in, 0, 6, soon);
      }
    } else if (group.rank() == 0) {
      std::vector<Buffer> out;
      std::vector<Work> works;
      std::vector<int> sources(6, any_peer);
      for (int i = 0; i < 6; ++i) {
        out.emplace_back(group, DType::i32, Shape{2});
        works.push_back(
            group.recv_async(out.back(), i % 2 == 0 ? any_peer : 1, 6, soon, &sources[index(i)]));
      }
      for (int i = 0; i < 6; ++i) {
        works[index(i)].wait();
        EXPECT_TRUE(same(out[index(i)].read(), message_of(i))) << "message " << i;
        EXPECT_EQ(sources[index(i)], 1);
      }
    }
    expect_usable(group);
    // The numbers of named receives go on.
    if (group.rank() == 1) {
      const Buffer in(group, message_of(9));
      group.send(in, 0, 6, soon);
    } else if (group.rank() == 0) {
      const Buffer out(group, DType::i32, {2});
      group.recv(out, 1, 6, soon);
      EXPECT_TRUE(same(out.read(), message_of(9)));
    }
  });
}

TEST_P(ReceiveFromAny, TakesItsTagAloneAndMayBeFromItself) {
  on_able_ranks([](ProcessGroup& group) {
    const Buffer seven(group, message_of(7));
    const Buffer eight(group, message_of(8));
    Work first = group.send_async(seven, group.rank(), 7, soon);
    Work second = group.send_async(eight, group.rank(), 8, soon);
    const Buffer out(group, DType::i32, {2});
    EXPECT_EQ(group.recv(out, any_peer, 8, soon), group.rank());
    EXPECT_TRUE(same(out.read(), message_of(8)));
    EXPECT_EQ(group.recv(out, any_peer, 7, soon), group.rank());
    EXPECT_TRUE(same(out.read(), message_of(7)));
    first.wait();
    second.wait();
  });
}

TEST_P(ReceiveFromAny, InACoalesce) {
  on_able_ranks([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    int source = any_peer;
    Coalesce together(group);
    Work sent = group.send_async(in, next, 9, soon);
    Work received = group.recv_async(out, any_peer, 9, soon, &source);
    together.launch().wait();
    EXPECT_EQ(source, previous);
    EXPECT_TRUE(same(out.read(), message_of(previous)));
    sent.wait();
    received.wait();
  });
}

// A receive that was made before takes the send, although the later one would take any.
TEST_P(ReceiveFromAny, TakesNoSendOfAnEarlierReceive) {
  on_able_ranks([](ProcessGroup& group) {
    if (group.rank() == 1) {
      for (const int i : {1, 2}) {
        const Buffer in(group, message_of(i));
        group.send(in, 0, 17, soon);
      }
    } else if (group.rank() == 0) {
      const Buffer named(group, DType::i32, {2});
      const Buffer any(group, DType::i32, {2});
      Work first = group.recv_async(named, 1, 17, soon);
      EXPECT_EQ(group.recv(any, any_peer, 17, soon), 1);
      first.wait();
      EXPECT_TRUE(same(named.read(), message_of(1)));
      EXPECT_TRUE(same(any.read(), message_of(2)));
    }
    expect_usable(group);
  });
}

// Rank 1 sends its second message when the first one has been received.
TEST_P(ReceiveFromAny, AnAsyncOneIsReceivedWhileNoThreadWaitsForIt) {
  on_able_ranks([](ProcessGroup& group) {
    constexpr std::int64_t count = 1 << 19;
    const Buffer large(group, DType::i32, {count});
    const Buffer small(group, DType::i32, {2});
    if (group.rank() == 1) {
      group.send(large, 0, 18, soon);
      group.send(small, 0, 19, soon);
    } else if (group.rank() == 0) {
      int source = any_peer;
      Work work = group.recv_async(large, any_peer, 18, soon, &source);
      group.recv(small, 1, 19, soon);
      work.wait();
      EXPECT_EQ(source, 1);
    }
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, CallsBackWithTheSource) {
  on_able_ranks([](ProcessGroup& group) {
    const Buffer in(group, message_of(group.rank()));
    const Buffer out(group, DType::i32, {2});
    if (group.rank() == 1) group.send(in, 0, 20, soon);
    if (group.rank() == 0) {
      int source = any_peer;
      int seen = any_peer;
      int after = any_peer;
      Work work = group.recv_async(out, any_peer, 20, soon, &source);
      work.on_done([&](const Error* error) { seen = error == nullptr ? source : -1; });
      std::move(work).then([&] { after = source; }).wait();
      EXPECT_EQ(seen, 1);
      EXPECT_EQ(after, 1);
      EXPECT_TRUE(same(out.read(), message_of(1)));
    }
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, KeepsTheOrderOfEachSenderUnderLoad) {
  on_able_ranks([](ProcessGroup& group) {
    constexpr int messages = 60;
    const int size = group.size();
    std::vector<Work> sent;
    std::vector<Buffer> in;
    for (int i = 0; i < messages && group.rank() != 0; ++i) {
      const auto data = group.rank() * 1000 + i;
      in.emplace_back(group, array_of<std::int32_t>({data, data}));
      sent.push_back(group.send_async(in.back(), 0, 21, {.timeout = 30s}));
    }
    if (group.rank() == 0) {
      std::vector<int> next(index(size));
      for (int i = 0; i < messages * (size - 1); ++i) {
        const Buffer out(group, DType::i32, {2});
        // A sender that has messages left, by name; the rest from any rank.
        int from = any_peer;
        for (int r = 1; r < size && i % 3 == 0; ++r)
          if (next[index(r)] < messages) from = r;
        const int source = group.recv(out, from, 21, {.timeout = 30s});
        ASSERT_TRUE(source > 0 && source < size) << source;
        ASSERT_TRUE(from == any_peer || from == source);
        const auto expected = source * 1000 + next[index(source)]++;
        ASSERT_TRUE(same(out.read(), array_of<std::int32_t>({expected, expected})))
            << "message " << i << " from " << source;
      }
    }
    for (Work& work : sent) work.wait();
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, InASubGroupHasItsRanks) {
  on_able_ranks([](ProcessGroup& group) {
    // In the reverse order.
    auto part = group.split(0, group.size() - group.rank());
    const Buffer in(group, message_of(part->rank()));
    const Buffer out(group, DType::i32, {2});
    if (part->rank() == 1) part->send(in, 0, 22, soon);
    if (part->rank() == 0) {
      EXPECT_EQ(part->recv(out, any_peer, 22, soon), 1);
      EXPECT_TRUE(same(out.read(), message_of(1)));
    }
    expect_usable(*part);
  });
}

TEST_P(ReceiveFromAny, AMismatchNamesBothSides) {
  if (!sends_wait(world())) GTEST_SKIP() << "the group breaks";
  on_able_ranks([](ProcessGroup& group) {
    const Buffer two(group, message_of(1));
    const Buffer three(group, DType::i32, {3});
    if (group.rank() == 0)
      expect_error(Errc::mismatch, {"rank 1: send i32 [2]", "rank 0: recv i32 [3] from any_peer"},
                   [&] { (void)group.recv(three, any_peer, 10, soon); });
    if (group.rank() == 1)
      expect_error(Errc::mismatch, {"rank 1: send i32 [2]", "rank 0: recv i32 [3] from any_peer"},
                   [&] { group.send(two, 0, 10, soon); });
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, ARefusalOfOneSideIsToldToTheOther) {
  const bool waits = sends_wait(world());
  on_able_ranks([waits](ProcessGroup& group) {
    const TensorView null(nullptr, DType::i32, {2}, group.memory().device());
    const Buffer data(group, message_of(1));
    if (group.rank() == 0) {
      expect_error(Errc::mismatch, {"rank 1", "refused", "null"},
                   [&] { (void)group.recv(data, any_peer, 11, soon); });
      expect_error(Errc::invalid_argument, {"recv", "null"},
                   [&] { (void)group.recv(null, any_peer, 12, soon); });
    } else if (group.rank() == 1) {
      expect_error(Errc::invalid_argument, {"send", "null"},
                   [&] { group.send(null, 0, 11, soon); });
      if (waits)
        expect_error(Errc::mismatch, {"rank 0", "refused", "null"},
                     [&] { group.send(data, 0, 12, soon); });
      else
        group.send(data, 0, 12, soon);
    }
    expect_usable(group);
  });
}

TEST_P(ReceiveFromAny, EndsAtItsDeadlineWithoutANameOfAPeer) {
  RankBarrier failed(world().size);
  on_able_ranks(
      [&](ProcessGroup& group) {
        if (group.rank() == 0) {
          const Buffer out(group, DType::i32, {2});
          expect_error(Errc::timeout, {"no rank has made its side of recv i32 [2] from any_peer"},
                       [&] { (void)group.recv(out, any_peer, 13, {.timeout = 50ms}); });
        }
        failed.wait();
      },
      true);
}

TEST_P(ReceiveFromAny, EndsByAnAbort) {
  on_able_ranks(
      [](ProcessGroup& group) {
        const Buffer out(group, DType::i32, {2});
        if (group.rank() != 0) return;
        Work work = group.recv_async(out, any_peer, 14);
        group.abort("the test");
        expect_error(Errc::aborted, {"the test"}, [&] { work.wait(); });
      },
      true);
}

// While one other rank is left, that one may still send.
TEST_P(ReceiveFromAny, EndsWhenAllOtherRanksHaveLeft) {
  on_able_ranks(
      [](ProcessGroup& group) {
        const Buffer out(group, DType::i32, {2});
        const Buffer in(group, message_of(group.rank()));
        if (group.rank() == 0) {
          EXPECT_EQ(group.recv(out, any_peer, 15, soon), group.size() - 1);
          expect_error(Errc::peer_lost, {"all other ranks have left"},
                       [&] { (void)group.recv(out, any_peer, 15, soon); });
          return;
        }
        if (group.rank() == group.size() - 1) group.send(in, 0, 15, soon);
        const ProcessGroup gone = std::move(group);
      },
      true);
}

TEST_P(ReceiveFromAny, IsInTheTrace) {
  on_able_ranks(
      [](ProcessGroup& group) {
        const Buffer in(group, message_of(1));
        const Buffer out(group, DType::i32, {2});
        Work sent = group.send_async(in, group.rank(), 16, soon);
        (void)group.recv(out, any_peer, 16, soon);
        sent.wait();
        const Trace trace = group.trace();
        ASSERT_FALSE(trace.empty());
        EXPECT_EQ(trace.back().operation, Operation::recv);
        EXPECT_EQ(trace.back().peer, any_peer);
        EXPECT_NE(to_string(trace.back()).find("recv #0 i32 8 B any_peer"), std::string::npos)
            << to_string(trace.back());
      },
      true);
}

}  // namespace
}  // namespace tutti::test
