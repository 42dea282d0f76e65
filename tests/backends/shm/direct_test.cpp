// Collectives whose ranks access each other's arrays.

#include "memory/direct.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "memory/collectives.hpp"
#include "memory/mapped_memory.hpp"
#include "memory/member.hpp"
#include "shm/rendezvous.hpp"
#include "support.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

namespace memory = backend::memory;
namespace shm = backend::shm;
using memory::MappedMemory;

/// Whether the ranks of this process read private arrays of their peers.
void set_reads(bool permitted) {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // Where Yama restricts it.
  ::setenv("TUTTI_SHM_READS", permitted ? "1" : "0", 1);
}

/// The rank leaves at the end: a peer may still be in its last call when this process ends.
std::shared_ptr<memory::Member> make_member(std::shared_ptr<Store> store, int rank, int size) {
  auto member = shm::join(BackendInit{.store = std::move(store),
                                      .rank = rank,
                                      .size = size,
                                      .name = "members",
                                      .timeout = 10s,
                                      .logger = [](LogLevel, std::string_view) {}});
  memory::Member* const place = member.get();
  return {place, [member = std::move(member)](memory::Member* mine) { mine->leave(); }};
}

std::shared_ptr<memory::Member> make_member(RankProcess& rank, const std::string& name) {
  return make_member(make_prefix_store(rank.options(name).store, name), rank.rank(), rank.size());
}

/// An array of a rank, in memory that peers can map or in private memory.
class Array32 {
 public:
  Array32(MappedMemory& memory, bool mapped, std::size_t before, std::size_t count)
      : tensor_(mapped ? static_cast<Memory&>(memory) : host_memory(),
                Shape{static_cast<std::int64_t>(before + count + 16)}, DType::i32),
        before_(before),
        count_(count) {
    std::ranges::fill(tensor_.values<std::int32_t>(), -1);
  }
  std::span<std::int32_t> values() {
    return tensor_.values<std::int32_t>().subspan(before_, count_);
  }
  /// True if nothing was written beside the array.
  bool is_intact() {
    const auto all = tensor_.values<std::int32_t>();
    const auto untouched = [](std::int32_t value) { return value == -1; };
    return std::ranges::all_of(all.first(before_), untouched) &&
           std::ranges::all_of(all.subspan(before_ + count_), untouched);
  }

 private:
  Tensor tensor_;
  std::size_t before_;
  std::size_t count_;
};

std::int32_t number(int rank, std::size_t i) {
  return static_cast<std::int32_t>(i % 1009) * (rank + 1) + rank;
}

struct Arrays {
  bool in_mapped;
  bool out_mapped;
  bool in_place;
  int root = -1;  // The last rank.
};

/// Runs one operation on `count` elements (of the whole) and checks its result. The arrays of the
/// ranks begin at different offsets. Returns the number of direct collectives of the member.
std::uint64_t run_and_check(memory::Member& member, std::uint64_t& calls, Operation kind,
                            std::size_t count, const Arrays& how) {
  const int me = member.rank();
  const auto size = static_cast<std::size_t>(member.size());
  const auto mine = static_cast<std::size_t>(me);
  std::vector<std::int64_t> rows(size);  // Skewed.
  for (std::size_t r = 0; r + 1 < size; ++r) rows[r] = static_cast<std::int64_t>(r * 100);
  rows.back() = static_cast<std::int64_t>(count - (size - 1) * (size - 2) / 2 * 100);
  const auto begin = [&](std::size_t r) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < r; ++i) sum += static_cast<std::size_t>(rows[i]);
    return sum;
  };
  const auto block = static_cast<std::size_t>(rows[mine]);
  const bool gathers = kind == Operation::all_gather || kind == Operation::gather;
  const bool scatters = kind == Operation::scatter || kind == Operation::reduce_scatter;
  const int root = how.root < 0 ? member.size() - 1 : how.root;
  const bool broadcasts = kind == Operation::broadcast;
  Array32 in(member.memory(), how.in_mapped, 3 + 5 * mine, gathers ? block : count);
  Array32 out(member.memory(), how.out_mapped, 16 + mine, scatters ? block : count);
  auto source = in.values();
  auto result = out.values();
  if (how.in_place || broadcasts) {
    if (gathers)
      source = result.subspan(begin(mine), block);
    else if (scatters)
      result = source.subspan(begin(mine), block);
    else
      source = result;
  }
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = number(me, i);

  Op op{.kind = kind, .in = source, .out = result, .reduce = ReduceOp::sum, .root = root};
  if (gathers || scatters) op.rows = Rows(rows);
  const bool is_root = me == root;
  if (!is_root && (kind == Operation::gather || kind == Operation::reduce)) op.out = {};
  if (!is_root && kind == Operation::scatter) op.in = {};
  const std::vector ops{op};
  const Call call{.seq = calls++, .fingerprint = 1, .deadline = Deadline::after(10s)};
  memory::run_collectives(member, ops, call);

  const auto sum = [&](std::size_t i, int ranks) {
    std::int32_t all = 0;
    for (int r = 0; r < ranks; ++r) all += number(r, i);
    return all;
  };
  if (op.out.data != nullptr && (is_root || kind != Operation::gather)) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      std::int32_t want = 0;
      switch (kind) {
        case Operation::broadcast:
          want = number(root, i);
          break;
        case Operation::scatter:
          want = number(root, begin(mine) + i);
          break;
        case Operation::reduce_scatter:
          want = sum(begin(mine) + i, member.size());
          break;
        case Operation::scan:
          want = sum(i, me + 1);
          break;
        case Operation::exclusive_scan:
          want = sum(i, me);
          break;
        case Operation::all_gather:
        case Operation::gather: {
          std::size_t r = 0;
          while (i >= begin(r + 1)) ++r;
          want = number(static_cast<int>(r), i - begin(r));
          break;
        }
        default:
          want = sum(i, member.size());
      }
      if (result[i] != want) {
        ADD_FAILURE() << name_of(kind) << " of " << count << ", rank " << me << ": element " << i
                      << " is " << result[i] << ", not " << want;
        break;
      }
    }
  }
  EXPECT_TRUE(in.is_intact() && out.is_intact()) << name_of(kind) << ", rank " << me;
  return member.moved();
}

constexpr std::array direct_kinds{
    Operation::all_reduce,     Operation::broadcast, Operation::reduce,
    Operation::all_gather,     Operation::gather,    Operation::scatter,
    Operation::reduce_scatter, Operation::scan,      Operation::exclusive_scan};

/// A call of a small all_reduce, a large one, and an all_to_all with unequal blocks.
void run_together(memory::Member& member, std::uint64_t& calls, bool mapped) {
  const auto size = static_cast<std::size_t>(member.size());
  const int me = member.rank();
  const auto rows_of = [](std::size_t from, std::size_t to) {
    return static_cast<std::int64_t>(from == 0 && to == 1 ? 0 : 9000 * from + 700 * to + 1);
  };
  std::vector<std::int64_t> sends(size);
  std::vector<std::int64_t> receives(size);
  std::size_t sent = 0;
  std::size_t received = 0;
  for (std::size_t r = 0; r < size; ++r) {
    sent += static_cast<std::size_t>(sends[r] = rows_of(static_cast<std::size_t>(me), r));
    received += static_cast<std::size_t>(receives[r] = rows_of(r, static_cast<std::size_t>(me)));
  }
  std::array<std::int32_t, 3> few{1, 2, 3};
  Array32 many(member.memory(), mapped, 7, 50'000);
  Array32 in(member.memory(), mapped, static_cast<std::size_t>(me), sent);
  Array32 out(member.memory(), mapped, 5, received);
  for (std::size_t i = 0; i < many.values().size(); ++i) many.values()[i] = number(me, i);
  for (std::size_t i = 0; i < sent; ++i) in.values()[i] = number(me, i);
  const std::vector ops{
      Op{.kind = Operation::all_reduce, .in = few, .out = few, .reduce = ReduceOp::sum},
      Op{.kind = Operation::all_reduce,
         .in = many.values(),
         .out = many.values(),
         .reduce = ReduceOp::sum},
      Op{.kind = Operation::all_to_all,
         .in = in.values(),
         .out = out.values(),
         .rows = Rows(receives),
         .send_rows = Rows(sends)}};
  const Call call{.seq = calls++, .fingerprint = 1, .deadline = Deadline::after(10s)};
  memory::run_collectives(member, ops, call);

  EXPECT_EQ(few[2], 3 * member.size());
  bool right = true;
  for (std::size_t i = 0; i < many.values().size(); ++i) {
    std::int32_t want = 0;
    for (int r = 0; r < member.size(); ++r) want += number(r, i);
    right = right && many.values()[i] == want;
  }
  EXPECT_TRUE(right) << "all_reduce, rank " << me;
  std::size_t at = 0;
  for (std::size_t r = 0; r < size; ++r) {
    std::size_t begin = 0;
    for (int to = 0; to < me; ++to)
      begin += static_cast<std::size_t>(rows_of(r, static_cast<std::size_t>(to)));
    for (std::int64_t i = 0; i < receives[r]; ++i)
      right = right && out.values()[at++] ==
                           number(static_cast<int>(r), begin + static_cast<std::size_t>(i));
  }
  EXPECT_TRUE(right) << "all_to_all, rank " << me;
  EXPECT_TRUE(many.is_intact() && in.is_intact() && out.is_intact());
}

TEST(ShmDirect, AccessesTheArraysOfPeersWhereverTheyAre) {
  for (const int size : {2, 3})
    on_processes({.size = size}, [](RankProcess& rank) {
      const auto member = make_member(rank, "direct");
      // Segments of the ranks differ in number and in size.
      const Tensor first(member->memory(), Shape{(rank.rank() + 1) * 1'000'000}, DType::f32);
      std::uint64_t calls = 0;
      std::uint64_t direct = 0;
      for (const auto kind : direct_kinds)
        for (const std::size_t count : {5000U, 65'537U, 300'000U})
          for (const bool in_place : {false, true}) {
            const auto done = run_and_check(*member, calls, kind, count, {true, true, in_place});
            EXPECT_EQ(done, ++direct) << name_of(kind);
          }
      return std::string();
    });
}

TEST(ShmDirect, AccessesPrivateArraysOfThreads) {
  for (const int size : {2, 3}) {
    const auto store = make_memory_store();
    on_threads(size, [&](int rank) {
      const auto member = make_member(store, rank, size);
      std::uint64_t calls = 0;
      std::uint64_t direct = 0;
      for (const auto kind : direct_kinds)
        for (const bool mapped : {false, true})
          for (const bool in_place : {false, true}) {
            const auto done = run_and_check(*member, calls, kind, 30'000,
                                            {mapped && rank == 0, mapped, in_place});
            EXPECT_EQ(done, ++direct) << name_of(kind);
          }
      run_together(*member, calls, false);
      EXPECT_EQ(member->moved(), direct + 2);
    });
  }
}

TEST(ShmDirect, MixedWithPrivateArraysGoesThroughSlots) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    set_reads(false);
    const auto member = make_member(rank, "mixed");
    std::uint64_t calls = 0;
    for (const auto kind : direct_kinds)
      for (const std::size_t count : {5000U, 300'000U})
        for (int which = 0; which < 4; ++which) {
          // Rank 1 and the root have a private array.
          const bool is_private = rank.rank() != 0;
          const Arrays how{.in_mapped = !is_private || which == 0,
                           .out_mapped = !is_private || which == 1,
                           .in_place = which == 3};
          const bool in_and_out = which >= 2;
          const auto before = member->moved();
          const auto after = run_and_check(*member, calls, kind, count, how);
          if (in_and_out) {
            EXPECT_EQ(after, before) << name_of(kind);
          }
        }
    // The group is usable in both ways after it.
    const auto before = member->moved();
    EXPECT_EQ(run_and_check(*member, calls, Operation::all_reduce, 50'000, {true, true, true}),
              before + 1);
    return std::string();
  });
}

TEST(ShmDirect, IsThereForEveryOperationOfACall) {
  for (const int size : {2, 3})
    on_processes({.size = size}, [](RankProcess& rank) {
      for (const bool reads : {false, true}) {
        set_reads(reads);
        const auto member = make_member(rank, reads ? "reading" : "together");
        std::uint64_t calls = 0;
        for (int i = 0; i < 6; ++i) {
          const bool all_mapped = i % 2 == 0;
          const auto before = member->moved();
          run_together(*member, calls, all_mapped || !rank.last());
          EXPECT_EQ(member->moved(), before + (all_mapped ? 2 : reads ? 1 : 0));
        }
      }
      return std::string();
    });
}

constexpr std::array reading_kinds{Operation::broadcast, Operation::all_gather, Operation::gather,
                                   Operation::scatter};

TEST(ShmDirect, ReadsPrivateInputsOfOtherProcesses) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    set_reads(true);
    const auto member = make_member(rank, "reads");
    std::uint64_t calls = 0;
    std::uint64_t direct = 0;
    for (const auto kind : reading_kinds)
      for (const std::size_t count : {5000U, 65'537U, 700'000U})
        for (int which = 0; which < 3; ++which) {
          const Arrays how{.in_mapped = which == 0 && rank.rank() == 0,
                           .out_mapped = which == 1,
                           .in_place = which == 2};
          const bool small = count == 5000;  // Below the threshold.
          const auto done = run_and_check(*member, calls, kind, count, how);
          const bool mapped = kind == Operation::broadcast && how.out_mapped;
          EXPECT_EQ(done, direct += small && !mapped ? 0 : 1) << name_of(kind) << ' ' << which;
        }
    return std::string();
  });
}

TEST(ShmDirect, ReadsAreChosenForEachOperationByItsCopies) {
  using memory::reads_gain;
  using enum Operation;
  // Two ranks on two cores of an Intel Xeon and of an AMD EPYC: us of 256 KiB by slots and reads.
  for (const auto kind : {broadcast, gather}) EXPECT_FALSE(reads_gain(kind, 2, 2, {16, 23}));
  EXPECT_TRUE(reads_gain(scatter, 2, 2, {16, 23}));  // Its root fills slots with two blocks.
  for (const auto kind : {all_gather, all_to_all, all_gather_bounded}) {
    EXPECT_TRUE(reads_gain(kind, 2, 2, {13, 8.4}));
    EXPECT_FALSE(reads_gain(kind, 2, 2, {4.92, 12.1}));
  }
  for (const auto kind : {broadcast, gather, scatter})
    EXPECT_FALSE(reads_gain(kind, 2, 2, {9.67, 34.9}));
  // Less than the noise is no gain.
  EXPECT_FALSE(reads_gain(all_gather, 2, 2, {10, 9.6}));
  EXPECT_TRUE(reads_gain(all_gather, 2, 2, {10, 9.4}));
  // On four ranks an all_to_all fills three blocks, an all_gather one.
  EXPECT_FALSE(reads_gain(all_gather, 4, 4, {10, 12}));
  EXPECT_TRUE(reads_gain(all_to_all, 4, 4, {10, 12}));
  // On fewer cores the copies of all ranks count.
  EXPECT_TRUE(reads_gain(scatter, 8, 8, {10, 70}));
  EXPECT_FALSE(reads_gain(scatter, 8, 2, {10, 30}));
}

TEST(ShmDirect, ADecisionOnReadsIsOfAnOperationAndASize) {
  memory::ReadChoice choice;
  choice.permit(memory::ReadChoice::Permission::tested);
  choice.set(Operation::all_gather, 1 << 20, true);
  EXPECT_EQ(choice.reads(Operation::all_gather, 256 << 10), true);
  EXPECT_EQ(choice.reads(Operation::all_gather_bounded, (4 << 20) - 1), true);
  EXPECT_EQ(choice.reads(Operation::all_gather, 4 << 20), std::nullopt);
  EXPECT_EQ(choice.reads(Operation::all_gather, 32 << 10), std::nullopt);
  EXPECT_EQ(choice.reads(Operation::all_gather, (32 << 10) - 1), false);
  EXPECT_EQ(choice.reads(Operation::broadcast, 1 << 20), std::nullopt);
  choice.give_up();
  EXPECT_EQ(choice.reads(Operation::all_gather, 1 << 20), false);
}

TEST(ShmDirect, ATestDecidesAlikeForThreadsAndProcesses) {
  on_processes({.size = 2}, [](RankProcess& process) {
    ::unsetenv("TUTTI_SHM_READS");
    const auto store = make_prefix_store(process.options("decide").store, "decide");
    const auto body = [&](int rank) {
      const auto member = make_member(store, rank, 3);
      std::uint64_t calls = 0;
      for (const auto count : {30'000U, 300'000U, 3'300'000U})
        for (const auto kind : reading_kinds) run_and_check(*member, calls, kind, count, {});
      const auto decided = memory::describe_reads(member->reads());
      EXPECT_EQ(decided.find("unknown"), std::string::npos) << decided;
      if (rank == 0) process.store().set("decided", decided);
      EXPECT_EQ(process.store().get_text("decided", Deadline::after(10s)), decided);
    };
    std::thread second;  // Not on_threads(), whose threads a forked process does not have.
    if (!process.last()) second = std::thread([&] { body(1); });
    body(process.last() ? 2 : 0);
    if (second.joinable()) second.join();
    return std::string();
  });
}

TEST(ShmDirect, EveryOrderOfCallsIsRight) {
  for (const int size : {2, 3})
    for (const bool reads : {false, true})
      on_processes({.size = size}, [=](RankProcess& rank) {
        set_reads(reads);
        const auto member = make_member(rank, "orders");
        std::mt19937 random(7);  // The same on all ranks.
        const auto below = [&](std::size_t n) { return random() % n; };
        std::uint64_t calls = 0;
        for (int i = 0; i < 300; ++i) {
          const auto kind = direct_kinds[below(i % 3 == 0 ? direct_kinds.size() : 2)];
          const auto count = std::array{500U, 3000U, 20'000U, 70'000U, 150'000U}[below(5)];
          const bool mapped = below(4) == 0;
          run_and_check(*member, calls, kind, count,
                        {mapped, mapped, below(2) == 0,
                         static_cast<int>(below(static_cast<std::size_t>(size)))});
        }
        return std::string();
      });
}

// A rank may not read from the beginning, or later, or does not want to.
TEST(ShmDirect, WhatOneRankCannotReadGoesThroughSlots) {
  for (const int begins : {0, 1, 2})
    on_processes({.size = 3}, [begins](RankProcess& rank) {
      set_reads(!rank.last() || begins != 2);
      const auto member = make_member(rank, "forbidden");
      std::uint64_t calls = 0;
      std::uint64_t direct = 0;
      for (int i = 0; i < 3; ++i) {
        if (i == begins && rank.last() && !forbid(SYS_process_vm_readv)) return std::string();
        for (const auto kind : reading_kinds) {
          const auto done = run_and_check(*member, calls, kind, 300'000, {});
          // The last rank is the root of the broadcast, so it reads in the all_gather after it.
          const bool tried = begins == 1 && calls <= reading_kinds.size() + 2;
          EXPECT_EQ(done, direct += tried ? 1 : 0) << name_of(kind) << ' ' << begins << ' ' << i;
        }
      }
      return std::string();
    });
}

TEST(ShmDirect, ASegmentThatAPeerCannotMapIsNotUsedByAnyRank) {
  on_processes({.size = 3}, [](RankProcess& rank) {
    const auto member = make_member(rank, "unmapped");
    Tensor own(member->memory(), Shape{1'000'000}, DType::i32);
    if (rank.last()) {
      const auto place = member->memory().find(own.data(), own.bytes());
      const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      ::dup2(nothing, place.file);
      ::close(nothing);
      own = Tensor();
    }
    std::uint64_t calls = 0;
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(run_and_check(*member, calls, Operation::all_reduce, 100'000, {true, true, true}),
                0U);
    return std::string();
  });
}

TEST(ShmDirect, ALocationThatIsNotPossibleBreaksTheGroup) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    const auto member = make_member(rank, "place");
    Tensor data(member->memory(), Shape{100'000}, DType::i32);
    const Op op{.kind = Operation::all_reduce, .in = data, .out = data, .reduce = ReduceOp::sum};
    const std::vector ops{op};
    const Call call{.deadline = Deadline::after(10s)};
    if (rank.last()) {
      auto place = member->memory().find(data.data(), data.bytes());
      place.offset = ~std::uint64_t{0} - 100;
      const memory::EntryArrays entry{.in = place, .out = place};
      member->begin(ops, call);
      member->enter(std::as_bytes(std::span(&entry, 1)), false);
      (void)member->agree((1U << memory::Member::agreed_bits) -
                          1);  // Each has mapped the other's segment.
      rank.barrier();
      EXPECT_EQ(member->failure()->code(), Errc::backend);
      return std::string();
    }
    expect_error(Errc::backend, {"rank 1 wrote the location of an array", "not possible"},
                 [&] { memory::run_collectives(*member, ops, call); });
    rank.barrier();
    return std::string();
  });
}

void expect_sum(ProcessGroup& group, Tensor& data) {
  std::ranges::fill(data.values<std::int32_t>(), group.rank() + 1);
  group.all_reduce(data);
  const auto want = group.size() * (group.size() + 1) / 2;
  EXPECT_TRUE(std::ranges::all_of(data.values<std::int32_t>(),
                                  [&](std::int32_t value) { return value == want; }));
}

TEST(ShmDirect, ArraysOutliveTheirGroupAndServeOthers) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    const auto before = holdings().descriptors;
    {
      Tensor data;
      {
        auto first = ProcessGroup::create(options_of(rank, "first"));
        EXPECT_EQ(&first.memory(), &first.registrable_memory());
        data = Tensor(first.memory(), Shape{500'000}, DType::i32);
        expect_sum(first, data);
        auto second = ProcessGroup::create(options_of(rank, "second"));
        EXPECT_EQ(&first.memory(), &second.memory());
        for (int i = 0; i < 3; ++i) {
          expect_sum(second, data);
          expect_sum(first, data);
        }
        auto own = options_of(rank, "own memory");
        own.memory = &host_memory();
        auto third = ProcessGroup::create(own);
        EXPECT_EQ(&third.memory(), &host_memory());
        expect_sum(third, data);
      }
      auto later = ProcessGroup::create(options_of(rank, "later"));
      expect_sum(later, data);
    }
    EXPECT_EQ(holdings().descriptors, before);
    return std::string();
  });
}

// --- Errors ---

// Rank 0 fails while rank 1 combines its part, with arrays of rank 0 as input and output.
TEST(ShmDirect, AnErrorIsReportedOnlyWhenNoThreadAccessesTheArrays) {
  struct Progress {
    std::atomic<bool> begun{false};
    std::atomic<bool> ended{false};
  } progress;
  on_fresh_ranks({.backend = "shm", .size = 2}, [&](ProcessGroup& group) {
    std::vector<std::int32_t> data(100'000, 1);
    const auto fails = [](const void*, void*, std::int64_t, DType, void* context) {
      while (!static_cast<Progress*>(context)->begun) std::this_thread::yield();
      throw std::runtime_error("rank 0 fails");
    };
    const auto sleeps = [](const void*, void*, std::int64_t, DType, void* context) {
      auto& of_rank_1 = *static_cast<Progress*>(context);
      of_rank_1.begun = true;
      std::this_thread::sleep_for(100ms);
      of_rank_1.ended = true;
    };
    const auto op = group.rank() == 0 ? ReduceOp::custom(fails, true, &progress)
                                      : ReduceOp::custom(sleeps, true, &progress);
    EXPECT_THROW(group.all_reduce(data, op), Error);
    EXPECT_TRUE(progress.ended) << "rank " << group.rank();
  });
}

}  // namespace
}  // namespace tutti::test
