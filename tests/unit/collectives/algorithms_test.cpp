// The collectives over wires in memory: every algorithm, at every group size, with and without
// segmentation, gives the result of a simple reference, and sends the number of bytes in
// docs/gloo.md.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include <tutti/error.hpp>

#include "collectives/algorithms.hpp"
#include "collectives/blocks.hpp"
#include "memory_wire.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using collectives::Algorithm;
using collectives::index;
using collectives::Wire;
using Numbers = std::vector<std::int32_t>;

/// Element i of rank r. Small, so that sums of any order are exact, with a long period.
std::int32_t value(int rank, std::size_t i) {
  return static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(rank) * 13) % 1009);
}
Numbers numbers(int rank, std::size_t n, std::size_t from = 0) {
  Numbers all(n);
  for (std::size_t i = 0; i < n; ++i) all[i] = value(rank, from + i);
  return all;
}
std::int32_t sum_of(int first, int last, std::size_t i) {
  std::int32_t sum = 0;
  for (int r = first; r <= last; ++r) sum += value(r, i);
  return sum;
}

struct Case {
  int size;
  std::size_t elements;  ///< Elements of a rank's array, or of all blocks together.
  std::string layout = "even";
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "w" << c.size << "_" << c.elements << "_" << c.layout;
}

constexpr std::size_t message = collectives::segment / sizeof(std::int32_t);

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int size : reduced() ? std::vector{2, 3} : std::vector{2, 3, 4, 5, 8})
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{1000}, 3 * message + 17, 21 * message + 5})
      all.push_back({size, n});
  return all;
}
std::vector<Case> ragged_cases() {
  std::vector<Case> all;
  for (const auto& even : cases())
    for (const auto* layout : {"even", "linear", "one_only", "one_empty", "first_huge"})
      all.push_back({even.size, even.elements, layout});
  return all;
}

/// Rows of every rank, about c.elements in total.
std::vector<std::int64_t> rows_of(const Case& c) {
  const auto n = static_cast<std::int64_t>(c.elements);
  std::vector<std::int64_t> rows(index(c.size));
  for (int r = 0; r < c.size; ++r) {
    auto& mine = rows[index(r)];
    if (c.layout == "even") mine = n / c.size;
    if (c.layout == "linear") mine = n * 2 * (r + 1) / (c.size * (c.size + 1));
    if (c.layout == "one_only") mine = r == c.size / 2 ? n : 0;
    if (c.layout == "one_empty") mine = r == 1 ? 0 : n / c.size;
    if (c.layout == "first_huge") mine = r == 0 ? n - n / 8 : n / 8 / c.size;
  }
  return rows;
}

Op op_of(Operation kind, const Numbers& in, Numbers& out, int root = -1) {
  return {.kind = kind,
          .in = ConstTensorView(in),
          .out = TensorView(out),
          .reduce = ReduceOp::sum,
          .root = root};
}

std::size_t total(const MemoryWires& wires) {
  return std::accumulate(wires.sent.begin(), wires.sent.end(), std::size_t{0});
}

struct Name {
  template <typename Param>
  std::string operator()(const testing::TestParamInfo<Param>& info) const {
    return testing::PrintToString(info.param);
  }
};

class Algorithms : public testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }
  std::size_t n() const { return GetParam().elements; }
  std::size_t bytes() const { return n() * sizeof(std::int32_t); }
  MemoryWires wires{GetParam().size};
};
INSTANTIATE_TEST_SUITE_P(Even, Algorithms, testing::ValuesIn(cases()), Name());

TEST_P(Algorithms, AllReduceSumsOnEveryRank) {
  for (const auto algorithm :
       {Algorithm::direct, Algorithm::recursive_doubling, Algorithm::ring, Algorithm::slices}) {
    MemoryWires mine(size());
    for (const bool in_place : {false, true})
      mine.run([&](Wire& wire) {
        Numbers in = numbers(wire.rank(), n());
        Numbers apart(n());
        Numbers& out = in_place ? in : apart;
        run_collective(wire, op_of(Operation::all_reduce, in, out), algorithm);
        for (std::size_t i = 0; i < n(); ++i)
          if (out[i] != sum_of(0, size() - 1, i)) throw std::runtime_error("wrong element");
        if (!in_place && in != numbers(wire.rank(), n())) throw std::runtime_error("input changed");
      });
    // Twice, because of in_place. A rank of a ring sends all slices but one, twice.
    const auto w = index(size());
    if (algorithm == Algorithm::ring || algorithm == Algorithm::slices) {
      EXPECT_EQ(total(mine), 2 * 2 * (w - 1) * bytes()) << name_of(algorithm);
    } else if (algorithm == Algorithm::direct) {
      EXPECT_EQ(total(mine), 2 * w * (w - 1) * bytes());
    }
  }
}

TEST_P(Algorithms, AvgAndPremulSumKeepTheirScales) {
  for (const auto algorithm :
       {Algorithm::direct, Algorithm::recursive_doubling, Algorithm::ring, Algorithm::slices})
    wires.run([&](Wire& wire) {
      std::vector<double> in(n());
      for (std::size_t i = 0; i < n(); ++i) in[i] = value(wire.rank(), i);
      std::vector<double> out(n());
      run_collective(wire,
                     {.kind = Operation::all_reduce, .in = in, .out = out, .reduce = ReduceOp::avg},
                     algorithm);
      for (std::size_t i = 0; i < n(); ++i)
        if (out[i] != sum_of(0, size() - 1, i) / static_cast<double>(size()))
          throw std::runtime_error("wrong average");
      run_collective(wire,
                     {.kind = Operation::all_reduce,
                      .in = in,
                      .out = out,
                      .reduce = ReduceOp::premul(1 << wire.rank())},
                     algorithm);
      for (std::size_t i = 0; i < n(); ++i) {
        double sum = 0;
        for (int r = 0; r < size(); ++r) sum += value(r, i) * static_cast<double>(1 << r);
        if (out[i] != sum) throw std::runtime_error("wrong scaled sum");
      }
    });
}

TEST_P(Algorithms, ReduceSumsOnTheRootAlone) {
  for (const auto algorithm : {Algorithm::direct, Algorithm::chain, Algorithm::slices})
    for (int root = 0; root < size(); ++root) {
      MemoryWires mine(size());
      mine.run([&](Wire& wire) {
        const Numbers in = numbers(wire.rank(), n());
        Numbers out(wire.rank() == root ? n() : 0);
        run_collective(wire, op_of(Operation::reduce, in, out, root), algorithm);
        for (std::size_t i = 0; i < out.size(); ++i)
          if (out[i] != sum_of(0, size() - 1, i)) throw std::runtime_error("wrong element");
      });
      if (algorithm != Algorithm::chain) continue;
      for (int r = 0; r < size(); ++r)
        EXPECT_EQ(mine.sent[index(r)], r == root ? 0 : bytes()) << "rank " << r;
    }
}

TEST_P(Algorithms, BroadcastReachesEveryRank) {
  for (const auto algorithm : {Algorithm::binomial_tree, Algorithm::chain})
    for (int root = 0; root < size(); ++root) {
      MemoryWires mine(size());
      mine.run([&](Wire& wire) {
        Numbers data = wire.rank() == root ? numbers(root, n()) : Numbers(n());
        run_collective(wire, op_of(Operation::broadcast, data, data, root), algorithm);
        if (data != numbers(root, n())) throw std::runtime_error("wrong element");
      });
      EXPECT_EQ(total(mine), index(size() - 1) * bytes());
      if (algorithm != Algorithm::chain) continue;
      for (const auto sent : mine.sent) EXPECT_LE(sent, bytes());
    }
}

TEST_P(Algorithms, ScansAddTheRanksBefore) {
  for (const auto algorithm : {Algorithm::direct, Algorithm::chain})
    for (const auto kind : {Operation::scan, Operation::exclusive_scan})
      for (const bool in_place : {false, true})
        wires.run([&](Wire& wire) {
          const int me = wire.rank();
          Numbers in = numbers(me, n());
          Numbers apart(n());
          Numbers& out = in_place ? in : apart;
          run_collective(wire, op_of(kind, in, out), algorithm);
          const int last = kind == Operation::scan ? me : me - 1;
          for (std::size_t i = 0; i < n(); ++i)
            if (out[i] != sum_of(0, last, i)) throw std::runtime_error("wrong element");
        });
}

class Ragged : public Algorithms {};
INSTANTIATE_TEST_SUITE_P(Layouts, Ragged, testing::ValuesIn(ragged_cases()), Name());

TEST_P(Ragged, AllGatherConcatenatesInRankOrder) {
  const auto rows = rows_of(GetParam());
  const auto all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  for (const auto algorithm : {Algorithm::direct, Algorithm::ring}) {
    MemoryWires mine(size());
    mine.run([&](Wire& wire) {
      const auto in = numbers(wire.rank(), static_cast<std::size_t>(rows[index(wire.rank())]));
      Numbers out(static_cast<std::size_t>(all));
      auto op = op_of(Operation::all_gather, in, out);
      op.rows = rows;
      run_collective(wire, op, algorithm);
      std::size_t at = 0;
      for (int r = 0; r < size(); ++r)
        for (std::size_t i = 0; i < static_cast<std::size_t>(rows[index(r)]); ++i)
          if (out[at++] != value(r, i)) throw std::runtime_error("wrong element");
    });
    for (int r = 0; r < size(); ++r) {
      const auto next = rows[index((r + 1) % size())];
      const auto expected =
          algorithm == Algorithm::ring ? all - next : (size() - 1) * rows[index(r)];
      EXPECT_EQ(mine.sent[index(r)], static_cast<std::size_t>(expected) * 4) << "rank " << r;
    }
  }
}

TEST_P(Ragged, ABoundedGatherSendsWhatThereIs) {
  const auto rows = rows_of(GetParam());
  const auto bound = std::ranges::max(rows) + 5;
  wires.run([&](Wire& wire) {
    const auto in = numbers(wire.rank(), static_cast<std::size_t>(rows[index(wire.rank())]));
    Numbers out(static_cast<std::size_t>(bound * size()), -1);
    auto op = op_of(Operation::all_gather_bounded, in, out);
    op.rows = Rows(bound);
    run_collective(wire, op, Algorithm::direct);
    for (int r = 0; r < size(); ++r)
      for (std::size_t i = 0; i < static_cast<std::size_t>(bound); ++i)
        if (out[index(r) * static_cast<std::size_t>(bound) + i] !=
            (i < static_cast<std::size_t>(rows[index(r)]) ? value(r, i) : -1))
          throw std::runtime_error("wrong element");
  });
  for (int r = 0; r < size(); ++r)
    EXPECT_EQ(wires.sent[index(r)], static_cast<std::size_t>((size() - 1) * rows[index(r)]) * 4);
}

TEST_P(Ragged, ReduceScatterSumsEachBlockOnItsRank) {
  const auto rows = rows_of(GetParam());
  const auto all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  for (const auto algorithm : {Algorithm::direct, Algorithm::ring}) {
    MemoryWires mine(size());
    mine.run([&](Wire& wire) {
      const int me = wire.rank();
      const auto in = numbers(me, static_cast<std::size_t>(all));
      Numbers out(static_cast<std::size_t>(rows[index(me)]));
      auto op = op_of(Operation::reduce_scatter, in, out);
      op.rows = rows;
      run_collective(wire, op, algorithm);
      const auto from = static_cast<std::size_t>(Rows(rows).offset(me));
      for (std::size_t i = 0; i < out.size(); ++i)
        if (out[i] != sum_of(0, size() - 1, from + i)) throw std::runtime_error("wrong element");
    });
    for (int r = 0; r < size(); ++r)
      EXPECT_EQ(mine.sent[index(r)], static_cast<std::size_t>(all - rows[index(r)]) * 4);
  }
}

TEST_P(Ragged, GatherAndScatterAreDirect) {
  const auto rows = rows_of(GetParam());
  const auto all =
      static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  const int root = size() - 1;
  wires.run([&](Wire& wire) {
    const int me = wire.rank();
    const auto mine = static_cast<std::size_t>(rows[index(me)]);
    const auto in = numbers(me, mine);
    Numbers out(me == root ? all : 0);
    auto op = op_of(Operation::gather, in, out, root);
    op.rows = rows;
    run_collective(wire, op, Algorithm::direct);
    Numbers back(mine);
    op = op_of(Operation::scatter, out, back, root);
    op.rows = rows;
    run_collective(wire, op, Algorithm::direct);
    if (back != in) throw std::runtime_error("wrong element");
  });
  EXPECT_EQ(total(wires), 2 * 4 * (all - static_cast<std::size_t>(rows[index(root)])));
}

TEST_P(Ragged, AllToAllSendsEachBlockOnce) {
  const auto rows = rows_of(GetParam());  // Every rank's block for r.
  const auto all =
      static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  wires.run([&](Wire& wire) {
    const int me = wire.rank();
    const auto in = numbers(me, all);
    const std::vector<std::int64_t> mine(index(size()), rows[index(me)]);
    Numbers out(index(size()) * static_cast<std::size_t>(rows[index(me)]));
    auto op = op_of(Operation::all_to_all, in, out);
    op.send_rows = rows;
    op.rows = mine;
    run_collective(wire, op, Algorithm::direct);
    const auto from = static_cast<std::size_t>(Rows(rows).offset(me));
    std::size_t at = 0;
    for (int r = 0; r < size(); ++r)
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows[index(me)]); ++i)
        if (out[at++] != value(r, from + i)) throw std::runtime_error("wrong element");
  });
  for (int r = 0; r < size(); ++r)
    EXPECT_EQ(wires.sent[index(r)], 4 * (all - static_cast<std::size_t>(rows[index(r)])) +
                                        8 * (index(size()) - 1));  // The counts.
}

class OtherSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OtherSizes, testing::Values(2, 3, 6, 7, 13, 16, 33));

TEST_P(OtherSizes, RingsDoNotWaitForThemselves) {
  const int size = GetParam();
  const std::size_t n = 64 * message / static_cast<std::size_t>(size) + 3;
  MemoryWires wires(size);
  for (const auto algorithm : {Algorithm::ring, Algorithm::slices, Algorithm::recursive_doubling})
    wires.run([&](Wire& wire) {
      Numbers data = numbers(wire.rank(), n);
      run_collective(wire, op_of(Operation::all_reduce, data, data), algorithm);
      for (std::size_t i = 0; i < n; i += 977)
        if (data[i] != sum_of(0, size - 1, i)) throw std::runtime_error("wrong element");
    });
}

TEST_P(OtherSizes, ABarrierIsLeftWhenAllHaveEntered) {
  MemoryWires wires(GetParam());
  wires.may_be_empty = true;
  std::atomic<int> entered{0};
  wires.run([&](Wire& wire) {
    ++entered;
    run_collective(wire, {.kind = Operation::barrier}, Algorithm::dissemination);
    if (entered != GetParam()) throw std::runtime_error("left too early");
  });
}

// Numbers whose float sum depends on the order.
TEST_P(OtherSizes, EveryRankHasTheSameBits) {
  const int size = GetParam();
  for (const auto algorithm :
       {Algorithm::direct, Algorithm::recursive_doubling, Algorithm::ring, Algorithm::slices}) {
    MemoryWires wires(size);
    std::vector<std::vector<float>> results(index(size));
    wires.run([&](Wire& wire) {
      std::vector<float> data(999);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = 1.0F / static_cast<float>(value(wire.rank(), i) + 3);
      run_collective(wire, {.kind = Operation::all_reduce, .in = data, .out = data, .reduce = {}},
                     algorithm);
      results[index(wire.rank())] = data;
    });
    for (const auto& other : results) EXPECT_EQ(other, results[0]) << name_of(algorithm);
  }
}

TEST(Table, RefusesAnAlgorithmThatAnOperationDoesNotHave) {
  MemoryWires wires(2);
  EXPECT_THROW(wires.run([](Wire& wire) {
    run_collective(wire, {.kind = Operation::barrier}, Algorithm::ring);
  }),
               Error);
}

// 64 KiB on 4 ranks: recursive doubling sends 2 arrays per rank, and slices send 1.5, where
// messages wake no thread.
TEST(Table, ChoosesByTheKindOfWire) {
  constexpr std::size_t bytes = std::size_t{64} << 10;
  for (const bool wakes_a_thread : {true, false}) {
    MemoryWires wires(4);
    wires.wakes_a_thread = wakes_a_thread;
    wires.run([&](Wire& wire) {
      Numbers data = numbers(wire.rank(), bytes / sizeof(std::int32_t));
      run_collective(wire, op_of(Operation::all_reduce, data, data), false);
      for (std::size_t i = 0; i < data.size(); ++i)
        if (data[i] != sum_of(0, 3, i)) throw std::runtime_error("wrong element");
    });
    EXPECT_EQ(total(wires), 4 * (wakes_a_thread ? bytes * 2 : bytes / 2 * 3));
  }
  EXPECT_NE(collectives::describe_table(true), collectives::describe_table(false));
}

TEST(Table, IsPrintedWithTheNamesOfItsAlgorithms) {
  const auto text = collectives::describe_table(true);
  for (const auto algorithm :
       {Algorithm::direct, Algorithm::recursive_doubling, Algorithm::ring, Algorithm::slices,
        Algorithm::binomial_tree, Algorithm::chain, Algorithm::dissemination})
    EXPECT_NE(text.find(name_of(algorithm)), std::string::npos) << name_of(algorithm);
}

}  // namespace
}  // namespace tutti::test
