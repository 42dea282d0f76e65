#include <atomic>

#include "backends/nccl/groups.hpp"

// Groups over communicators that the program has made.

namespace tutti::test::nccl_double {
namespace {

class Adopting : public Double {
 protected:
  static constexpr int size = 2;

  static BackendInit init_of(const BareRank& at, const std::shared_ptr<Store>& store) {
    BackendInit init;
    init.store = make_prefix_store(store, "n/");
    init.rank = at.rank;
    init.size = at.size;
    init.name = "n";
    init.device = {DeviceType::cuda, at.rank};
    init.timeout = 10s;
    init.logger = [](LogLevel, std::string_view) {};
    init.adopt = AdoptedCommunicator{.communicator = at.comm};
    return init;
  }
  static ProcessGroup make(const BackendInit& init) {
    GroupOptions options;
    options.store = init.store;
    options.rank = init.rank;
    options.size = init.size;
    options.timeout = init.timeout;
    options.logger = init.logger;
    return ProcessGroup::create(options, backend::nccl::make_nccl(init, apis()));
  }
  /// The sum over the ranks of rank + 1, through the group.
  static void expect_sum(ProcessGroup& group, BareRank& at) {
    float* data = at.make(static_cast<float>(at.rank + 1));
    const TensorView view{data, DType::f32, {BareRank::count}, group.memory().device()};
    group.all_reduce(view, ReduceOp::sum, {.stream = {at.stream}});
    EXPECT_EQ(at.read(data), std::vector<float>(BareRank::count, 3));
  }
  /// The same sum through the program's own communicator.
  static void expect_still_usable(BareRank& at) {
    float* data = at.make(2);
    at.all_reduce(data, data);
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_EQ(at.read(data), std::vector<float>(BareRank::count, 4));
  }
  static void end(BareRank& at) {
    EXPECT_EQ(nccl().comm_finalize(at.comm), ncclInProgress);
    EXPECT_EQ(at.settle(), ncclSuccess);
    EXPECT_EQ(nccl().comm_destroy(at.comm), ncclSuccess);
    at.comm = nullptr;
  }
};

TEST_F(Adopting, TheCommunicatorServesTheGroupAndThenItsOwner) {
  const auto store = make_memory_store();
  const int made = calls("ncclCommInitRankConfig");
  on_bare_ranks(size, [&](BareRank& at) {
    std::atomic<bool> aborted{false};
    {
      BackendInit init = init_of(at, store);
      init.adopt->aborting = [&] { aborted = true; };
      ProcessGroup group = make(init);
      expect_sum(group, at);
    }
    EXPECT_FALSE(aborted);
    expect_still_usable(at);
    end(at);
  });
  EXPECT_EQ(calls("ncclCommInitRankConfig") - made, size);
}

TEST_F(Adopting, ACommunicatorThatBlocksServesToo) {
  const auto store = make_memory_store();
  const ncclUniqueId id = new_id();
  on_threads(size, [&](int rank) {
    BareRank at(rank, size);
    ASSERT_EQ(nccl().comm_init_rank_config(&at.comm, size, id, rank, nullptr), ncclSuccess);
    {
      ProcessGroup group = make(init_of(at, store));
      expect_sum(group, at);
    }
    float* data = at.make(2);
    EXPECT_EQ(at.all_reduce(data, data), ncclSuccess);
    EXPECT_EQ(at.read(data), std::vector<float>(BareRank::count, 4));
    EXPECT_EQ(nccl().comm_destroy(at.comm), ncclSuccess);
    at.comm = nullptr;
  });
}

TEST_F(Adopting, ASubGroupMakesACommunicatorOfItsOwn) {
  const auto store = make_memory_store();
  on_bare_ranks(size, [&](BareRank& at) {
    {
      ProcessGroup group = make(init_of(at, store));
      auto part = group.split(0);
      ASSERT_TRUE(part.has_value());
      expect_sum(*part, at);
      expect_sum(group, at);
    }
    expect_still_usable(at);
    end(at);
  });
}

TEST_F(Adopting, AnotherPlaceInTheCommunicatorIsRefusedWithBothSidesAndLeavesItAlone) {
  const auto store = make_memory_store();
  on_bare_ranks(size, [&](BareRank& at) {
    BackendInit init = init_of(at, store);
    init.rank = 1 - at.rank;
    bool aborted = false;
    init.adopt->aborting = [&] { aborted = true; };
    // Both ranks get the first refusal.
    const Error error =
        expect_error(Errc::invalid_argument, {"of 2, the group is rank"}, [&] { make(init); });
    const bool first =
        error.message().find("rank 0 of 2, the group is rank 1 of 2") != std::string::npos;
    const bool second =
        error.message().find("rank 1 of 2, the group is rank 0 of 2") != std::string::npos;
    EXPECT_TRUE(first || second) << error.message();
    EXPECT_FALSE(aborted);
    expect_still_usable(at);
    end(at);
  });
}

TEST_F(Adopting, AnotherDeviceIsRefusedWithBothSides) {
  const auto store = make_memory_store();
  on_bare_ranks(size, [&](BareRank& at) {
    BackendInit init = init_of(at, store);
    init.device.index = at.rank + 4;
    expect_error(Errc::invalid_argument, {"is on cuda:", "the group is on cuda:"},
                 [&] { make(init); });
    expect_still_usable(at);
    end(at);
  });
}

TEST_F(Adopting, SettingsOfACommunicatorAreRefusedByName) {
  const auto store = make_memory_store();
  on_bare_ranks(size, [&](BareRank& at) {
    BackendInit init = init_of(at, store);
    init.args = "priority=-1,max_ctas=8";
    expect_error(Errc::invalid_argument, {"to adopt", "'max_ctas=8'", "ncclConfig_t"},
                 [&] { make(init); });
    init.args = "priority=-1";
    init.store = make_prefix_store(store, "again/");
    {
      ProcessGroup group = make(init);
      expect_sum(group, at);
    }
    expect_still_usable(at);
    end(at);
  });
}

TEST_F(Adopting, ARankThatRefusesIsHeardByTheOthersBeforeTheyUseTheirs) {
  const auto store = make_memory_store();
  on_bare_ranks(size, [&](BareRank& at) {
    BackendInit init = init_of(at, store);
    if (at.rank == 1) init.adopt->communicator = nullptr;
    expect_error(Errc::invalid_argument, {"to adopt is null"}, [&] { make(init); });
    expect_still_usable(at);
    end(at);
  });
}

TEST_F(Adopting, AnAbortIsToldToTheOwnerOnceOnEveryRank) {
  const auto store = make_memory_store();
  RankBarrier barrier(size);
  on_bare_ranks(size, [&](BareRank& at) {
    BackendInit init = init_of(at, store);
    init.timeout = 300ms;
    std::atomic<int> told{0};
    init.adopt->aborting = [&] { ++told; };
    float* data = at.make(1);
    {
      ProcessGroup group = make(init);
      const TensorView view{data, DType::f32, {BareRank::count}, group.memory().device()};
      // Rank 1 does not call, and learns of the error when its group ends.
      if (at.rank == 0)
        expect_error(Errc::timeout, {"missing: 1"}, [&] {
          group.all_reduce_async(view, ReduceOp::sum, {.stream = {at.stream}}).wait();
        });
      barrier.wait();
    }
    EXPECT_EQ(told, 1);
    at.comm = nullptr;
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
