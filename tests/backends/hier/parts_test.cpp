// The parts of the backend hier, and the texts of its arguments.

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/process_group.hpp>

#include "hier/levels.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/store_over.hpp"

namespace tutti::test {
namespace {

namespace hier = backend::hier;

/// Counts what a rank writes to the store, but for its beats, which depend on the time.
class CountingStore final : public StoreOver {
 public:
  using StoreOver::StoreOver;
  std::atomic<int> writes{0};

 private:
  void seen(std::string_view key, bool is_written) override {
    writes += is_written && key.find("agreement/beat/") == key.npos ? 1 : 0;
  }
};

TEST(Creation, PartsOfThreadsKnowTheNamedHosts) {
  const ScopedVariables hosts{{"TUTTI_HOSTS", "a,a,b,b"}};
  on_ranks({.backend = "local", .size = 4}, [](ProcessGroup& group) {
    EXPECT_EQ(group.local_size(), 2);
    const auto part = group.subset(std::vector<int>{1, 2, 3});
    if (group.rank() == 0) return;
    EXPECT_EQ(part->local_size(), group.rank() == 1 ? 1 : 2);
  });
}

TEST(Creation, TakesFewWritesToTheStore) {
  struct Case {
    const char* backend;
    const char* hosts;
    int most;
  };
  const std::array<Case, 7> cases{{{"shm", "a", 8},
                                   {"gloo", "a,b,c,d", 12},
                                   {"tcp", "a,b,c,d", 9},
                                   {"ucx:shm", "a,b,c,d", 9},
                                   {"hier:shm+gloo", "a,a,b,b", 15},
                                   {"auto", "a,a,b,b", 12},
                                   {"auto", "a", 8}}};
  for (const auto& of : cases) {
    const ScopedVariables hosts{{"TUTTI_HOSTS", of.hosts}};
    const auto base = make_memory_store();
    std::array<int, 4> writes{};
    on_threads(4, [&](int rank) {
      const auto store = std::make_shared<CountingStore>(base);
      GroupOptions options;
      options.backend = of.backend;
      options.store = store;
      options.rank = rank;
      options.size = 4;
      auto group = ProcessGroup::create(options);
      writes[static_cast<std::size_t>(rank)] = store->writes;
      group.barrier();
    });
    std::ranges::sort(writes);
    EXPECT_LE(writes[0], of.most) << of.backend << ": "
                                  << fmt::format("{}", fmt::join(writes, " "));
  }
}

TEST(HierTopology, HasALaneForEachRankOfTheSmallestHost) {
  const std::vector<int> hosts{0, 1, 1, 0, 1};
  const hier::Topology first(hosts, 0);
  EXPECT_EQ(first.hosts(), 2);
  EXPECT_EQ(first.ranks_of(0), (std::vector{0, 3}));
  EXPECT_EQ(first.ranks_of(1), (std::vector{1, 2, 4}));
  EXPECT_EQ(first.lanes(), 2);
  EXPECT_EQ(first.most_on_a_host(), 3);
  EXPECT_EQ(first.lane(), (std::vector{0, 1}));
  EXPECT_EQ(hier::Topology(hosts, 2).lane(), (std::vector{3, 2}));
  const hier::Topology last(hosts, 4);
  EXPECT_EQ(last.place(), 2);
  EXPECT_FALSE(last.in_lane());
}

TEST(HierArguments, NameABackendWithinAHostAndOneBetween) {
  const auto make = [](const std::string& backend) {
    (void)ProcessGroup::create({.backend = backend, .checked = false});
  };
  for (const auto* backend :
       {"hier:local", "hier:+", "hier:local+", "hier:+local", "hier:auto+local", "hier:local+auto",
        "hier:hier:local+local+local", "hier:local+hier:local+local"})
    expect_error(Errc::invalid_argument, {"as in hier:shm+tcp"}, [&] { make(backend); });
  expect_error(Errc::invalid_argument, {"unknown backend 'nothing'"},
               [&] { make("hier:local+nothing"); });
  expect_error(Errc::invalid_argument, {"unknown backend 'nothing'"},
               [&] { make("hier:nothing+local"); });
  for (const auto& entry : backends())
    if (!entry.serves({}) && entry.unavailable().empty())
      expect_error(Errc::unsupported, {std::string(entry.name)},
                   [&] { make("hier:local+" + std::string(entry.name)); });
  make("hier:local+local");
  const auto built = [](std::string_view name) {
    return std::ranges::find(backends(), name, &BackendEntry::name) != backends().end();
  };
  if (built("shm") && built("gloo"))
    make("hier");
  else
    expect_error(Errc::unsupported, {"is not in this build"}, [&] { make("hier"); });
}

/// Runs `body` on a group over `backend` with these hosts.
void on_hosts(const char* hosts, int size, const std::function<void(ProcessGroup&)>& body,
              const std::string& backend = "hier:local+local") {
  const ScopedVariables variables{{"TUTTI_HOSTS", hosts}};
  const auto store = make_memory_store();
  on_threads(size, [&](int rank) {
    auto group = ProcessGroup::create({.backend = backend,
                                       .store = store,
                                       .rank = rank,
                                       .size = size,
                                       .timeout = 10s,
                                       .name = "hosts"});
    body(group);
  });
}

/// The backends of this build that can serve the ranks of a host.
std::vector<std::string> within_a_host() {
  std::vector<std::string> names;
  for (const auto& entry : backends())
    if (entry.name != "hier" && entry.serves({}) && entry.unavailable().empty())
      names.emplace_back(entry.name);
  return names;
}

// Ranks 1 and 2 are ranks 0 and 1 of their host's part.
TEST(HierErrors, NameTheWholeGroupAndItsRanks) {
  for (const auto& inner : within_a_host()) {
    SCOPED_TRACE(inner);
    const auto backend = "hier:" + backend_here(inner) + "+local";
    std::barrier done(3);
    const auto body = [&](ProcessGroup& group) {
      std::vector<float> two(2);
      std::vector<float> three(3);
      const int rank = group.rank();
      if (rank == 2) {
        TensorView null(two);
        null.data = nullptr;
        expect_error(Errc::invalid_argument, {"null"}, [&] { group.send(null, 1, 3); });
      } else if (rank == 1) {
        const auto error =
            expect_error(Errc::mismatch, {"rank 2 refused send"}, [&] { group.recv(two, 2, 3); });
        EXPECT_EQ(error.where().rank, 2);
        EXPECT_EQ(error.where().group, "hosts");
      }
      if (inner == "local" || inner == "shm") {
        const std::vector<std::string> sides{
            "rank 2: send f32 [2] to 1 tag 4 name 'shard of rank 0'",
            "rank 1: recv f32 [3] from 2 tag 4"};
        if (rank == 2)
          expect_error(std::vector{Errc::mismatch}, sides,
                       [&] { group.send(two, 1, 4, {.name = "shard of rank 0"}); });
        else if (rank == 1)
          expect_error(std::vector{Errc::mismatch}, sides, [&] { group.recv(three, 2, 4); });
      }
      group.barrier();
      if (rank == 1) {
        const auto error = expect_error(
            Errc::timeout, {"rank 2 has not made its side of recv f32 [2] from 2 tag 5"},
            [&] { group.recv(two, 2, 5, {.timeout = 100ms}); });
        EXPECT_EQ(error.where().rank, 2);
        EXPECT_EQ(error.where().group, "hosts");
      }
      done.arrive_and_wait();
    };
    on_hosts("a,b,b", 3, body, backend);
  }
}

constexpr std::array hosts_of_six{"a",   "a,b,c,d,e,f", "a,a,a,b,b,b",
                                  "a,b", "a,b,b,b,b,b", "b,a,a,b,c,a"};

// Around the change to several lanes, and with several chunks.
TEST(HierGroup, EveryPlacingOfTheRanksGivesTheSameResults) {
  for (const char* hosts : hosts_of_six)
    on_hosts(hosts, 6, [&](ProcessGroup& group) {
      SCOPED_TRACE(hosts);
      const int rank = group.rank();
      for (const std::size_t count :
           {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{8191}, std::size_t{8193},
            std::size_t{1'000'003}}) {
        std::vector<std::int32_t> in(count);
        for (std::size_t i = 0; i < count; ++i) in[i] = static_cast<std::int32_t>(i % 101) * rank;
        std::vector<std::int32_t> sum(count);
        for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<std::int32_t>(i % 101) * 15;

        std::vector<std::int32_t> out(count);
        group.all_reduce(in, out);
        EXPECT_EQ(out, sum);
        out = in;
        group.all_reduce(out);
        EXPECT_EQ(out, sum);
        for (int root = 0; root < 6; root += 5) {
          out.assign(count, -1);
          group.reduce(in, out, root);
          EXPECT_EQ(out, rank == root ? sum : std::vector<std::int32_t>(count, -1));
          out = in;
          group.broadcast(out, root);
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(out[i], static_cast<std::int32_t>(i % 101) * root);
        }
      }
    });
}

TEST(HierGroup, RowsOfUnevenLengthArriveInRankOrder) {
  for (const char* hosts : hosts_of_six)
    on_hosts(hosts, 6, [&](ProcessGroup& group) {
      SCOPED_TRACE(hosts);
      for (const std::int64_t unit : {0, 1, 3000, 700'000}) {
        const std::vector<std::int64_t> rows{unit, 0, 2 * unit, 1, 0, unit / 3};
        std::vector<std::int32_t> want;
        for (int r = 0; r < 6; ++r)
          for (std::int64_t i = 0; i < rows[static_cast<std::size_t>(r)]; ++i)
            want.push_back(r * 1'000'000 + static_cast<std::int32_t>(i));
        std::int64_t before = 0;
        for (int r = 0; r < group.rank(); ++r) before += rows[static_cast<std::size_t>(r)];
        const auto begin = want.begin() + before;
        const std::vector<std::int32_t> own(begin,
                                            begin + rows[static_cast<std::size_t>(group.rank())]);
        std::vector<std::int32_t> out(want.size(), -1);
        group.all_gather(own, out, rows);
        EXPECT_EQ(out, want);
        out.assign(want.size(), -1);  // In place.
        std::copy(own.begin(), own.end(), out.begin() + before);
        group.all_gather(std::span(out).subspan(static_cast<std::size_t>(before), own.size()), out,
                         rows);
        EXPECT_EQ(out, want);

        // Each rank contributes its number + 1 times the values; they add up to 21 times.
        std::vector<std::int32_t> in(want.size());
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = want[i] % 1000 * (group.rank() + 1);
        std::vector<std::int32_t> sums(own.size());
        for (std::size_t i = 0; i < own.size(); ++i) sums[i] = own[i] % 1000 * 21;
        std::vector<std::int32_t> part(own.size(), -1);
        group.reduce_scatter(in, part, rows);
        EXPECT_EQ(part, sums);
        const auto block = std::span(in).subspan(static_cast<std::size_t>(before), own.size());
        group.reduce_scatter(in, block, rows);  // In place.
        EXPECT_TRUE(std::ranges::equal(block, sums));
      }
    });
}

// Adding in another order gives other bits.
TEST(HierGroup, AFixedOrderHoldsForEveryPlacingOfTheRanks) {
  std::vector<std::vector<float>> results;
  for (const char* hosts : hosts_of_six) {
    PerRank<std::vector<float>> out(6);
    on_hosts(hosts, 6, [&](ProcessGroup& group) {
      constexpr std::array values{1e8F, 3.F, -1e8F, 0.3F, 7e7F, -7e7F};
      auto& mine = out[group.rank()];
      mine.assign(20'000, values[static_cast<std::size_t>(group.rank())]);
      group.all_reduce(mine, ReduceOp::sum, {.order_fixed = true});
    });
    for (const auto& result : out.all()) EXPECT_EQ(result, out[0]) << hosts;
    results.push_back(out[0]);
  }
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST(HierGroup, ARefusalReachesRanksInEveryPhase) {
  on_hosts("a,b,b,a,b", 5, [](ProcessGroup& group) {
    for (int refusing = 0; refusing < 5; ++refusing)
      for (const std::size_t count : {std::size_t{4}, std::size_t{1'000'000}}) {
        std::vector<float> data(count, 1);
        const auto array = group.rank() == refusing
                               ? TensorView(nullptr, DType::f32, {std::ssize(data)})
                               : TensorView(data);
        if (group.rank() == refusing)
          expect_error(Errc::invalid_argument, {"null"}, [&] { group.all_reduce(array); });
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(refusing) + " refused", "null"},
                       [&] { group.all_reduce(array); });
        data.assign(count, 1);
        group.all_reduce(data);
        EXPECT_EQ(data, std::vector<float>(count, 5));
      }
  });
}

}  // namespace
}  // namespace tutti::test
