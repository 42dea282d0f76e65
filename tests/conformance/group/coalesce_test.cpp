#include <tutti/coalesce.hpp>

#include <thread>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Coalescing : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Coalescing, testing::ValuesIn(worlds()), CaseName());

int sum_of_ranks(int size) {
  return size * (size - 1) / 2;
}

TEST_P(Coalescing, DifferentCollectivesTravelAsOneCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int size = group.size();
    const auto ranks = make_inputs(DType::i32, {1}, size, Fill::bits);
    const Buffer sum(group, number(rank));
    const Buffer data(group, number(rank));
    const Buffer mine(group, ranks[index(rank)]);
    const Buffer all(group, DType::i32, {size});
    Coalesce together(group);
    together.add(group.all_reduce_async(sum));
    together.add(group.broadcast_async(data, size - 1));
    together.add(group.all_gather_async(mine, all));
    together.launch().wait();
    EXPECT_TRUE(same(sum.read(), number(sum_of_ranks(size))));
    EXPECT_TRUE(same(data.read(), number(size - 1)));
    EXPECT_TRUE(same(all.read(), concat(ranks)));
  });
}

TEST_P(Coalescing, TheWorkOfEachCallWaitsForTheLaunch) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer first(group, number(group.rank()));
    const Buffer second(group, number(1));
    Coalesce together(group);
    Work one = group.all_reduce_async(first);
    Work two = group.all_reduce_async(second);
    EXPECT_FALSE(one.done());
    Work all = together.launch();
    two.wait();
    one.wait();
    all.wait();
    EXPECT_TRUE(same(first.read(), number(sum_of_ranks(group.size()))));
    EXPECT_TRUE(same(second.read(), number(group.size())));
  });
}

TEST_P(Coalescing, ABatchOfPointToPointIsAnExchange) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int size = group.size();
    std::vector<Buffer> in;
    std::vector<Buffer> out;
    for (int peer = 0; peer < size; ++peer) {
      in.emplace_back(group, number(10 * rank + peer));
      out.emplace_back(group, DType::i32, Shape{1});
    }
    Coalesce together(group);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      (void)group.send_async(in[index(peer)], peer, 9);
      (void)group.recv_async(out[index(peer)], peer, 9);
    }
    together.launch().wait();
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) {
        EXPECT_TRUE(same(out[index(peer)].read(), number(10 * peer + rank))) << "from " << peer;
      }
  });
}

TEST_P(Coalescing, CollectivesAndPointToPointMix) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int size = group.size();
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    const Buffer sum(group, number(rank));
    const Buffer in(group, number(rank));
    const Buffer out(group, DType::i32, {1});
    Coalesce together(group);
    (void)group.send_async(in, next, 1);
    (void)group.all_reduce_async(sum);
    (void)group.recv_async(out, previous, 1);
    together.launch().wait();
    EXPECT_TRUE(same(sum.read(), number(sum_of_ranks(size))));
    EXPECT_TRUE(same(out.read(), number(previous)));
    expect_usable(group);
  });
}

// The peers see this rank's collectives, not its messages, so only the former may decide how a call
// is made.
TEST_P(Coalescing, OneCollectiveAndMessagesThatSomeRanksDoNotHave) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int root = group.size() - 1;
    for (int round = 0; round < 20; ++round) {
      const Buffer sum(group, number(0));
      const Buffer message(group, number(rank));
      {
        // Freed when the call has returned, so a late access of a peer is seen by AddressSanitizer.
        const Buffer mine(group, number(rank + round));
        Coalesce together(group);
        if (rank == 0 && root > 0) (void)group.send_async(message, root);
        if (rank == root && root > 0) (void)group.recv_async(message, 0);
        (void)group.reduce_async(mine, sum, root);
        together.launch().wait();
      }
      if (rank == root) {
        EXPECT_TRUE(same(sum.read(), number(sum_of_ranks(group.size()) + round * group.size())));
        EXPECT_TRUE(same(message.read(), number(0)));
      }
    }
    expect_usable(group);
  });
}

TEST_P(Coalescing, SeveralGroupsLaunchTogether) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto half = group.split(group.rank() % 2);
    ASSERT_TRUE(half.has_value());
    const Buffer sum(group, number(1));
    const Buffer part(*half, number(1));
    Coalesce together({&group, &*half});
    (void)half->all_reduce_async(part);
    (void)group.all_reduce_async(sum);
    together.launch().wait();
    EXPECT_TRUE(same(sum.read(), number(group.size())));
    EXPECT_TRUE(same(part.read(), number(half->size())));
  });
}

TEST_P(Coalescing, NothingCollectedIsNothingSent) {
  on_ranks(world(), [](ProcessGroup& group) {
    {
      Coalesce together(group);
      Work work = together.launch();
      EXPECT_TRUE(work.done());
      work.wait();
    }
    { const Coalesce unused(group); }
    expect_usable(group);
  });
}

TEST_P(Coalescing, BlockingVerbsAreRefusedWhileItCollects) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"all_reduce"}, [&] { group.all_reduce(data); });
      together.launch().wait();
    }
    expect_usable(group);
  });
}

TEST_P(Coalescing, ABadCallIsRefusedWhenItIsMade) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"root"},
                   [&] { (void)group.broadcast_async(data, group.size()); });
      (void)group.all_reduce_async(data);
      together.launch().wait();
    }
    EXPECT_TRUE(same(data.read(), number(group.size())));
    expect_usable(group);
  });
}

TEST_P(Coalescing, WaitingBeforeTheLaunchIsAnError) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    Coalesce together(group);
    Work work = group.all_reduce_async(data);
    expect_error(Errc::invalid_argument, {"launch"}, [&] { work.wait(); });
    together.launch().wait();
    EXPECT_TRUE(same(data.read(), number(group.size())));
  });
}

TEST_P(Coalescing, CallsOfOtherThreadsAreNotCollected) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer kept(group, number(1));
    const Buffer sent(group, number(2));
    Coalesce together(group);
    (void)group.all_reduce_async(kept);
    std::thread([&] { group.all_reduce(sent); }).join();
    EXPECT_TRUE(same(sent.read(), number(2 * group.size())));
    EXPECT_TRUE(same(kept.read(), number(1))) << "was sent before launch()";
    together.launch().wait();
    EXPECT_TRUE(same(kept.read(), number(group.size())));
  });
}

TEST_P(Coalescing, EndingWithoutALaunchSendsNothingAndBreaksTheGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, number(1));
    {
      const Coalesce forgotten(group);
      (void)group.all_reduce_async(data);
    }
    EXPECT_TRUE(same(data.read(), number(1)));
    try {
      group.barrier();
      ADD_FAILURE() << "the group is still usable";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("launch"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tutti::test
