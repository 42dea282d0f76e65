#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>
#include <vector>

#include "collectives.hpp"
#include "thresholds.hpp"

// The test that finds from which size on private arrays are read (ReadThreshold).

namespace tutti::backend::memory {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t all_agree = (std::uint32_t{1} << Member::agreed_bits) - 1;
constexpr std::uint32_t to_be_tested = std::uint32_t{1} << (Member::agreed_bits - 1);
/// The ranks with a block in the test; more would take more memory.
constexpr int tested_ranks = 8;
constexpr int rounds = 6;  // The first does not count.

struct Arrays {
  explicit Arrays(int size)
      : in(tested_reads.back()),
        out(in.size() * static_cast<std::size_t>(std::min(size, tested_ranks))) {}
  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

/// The least time of an all_gather of private arrays in each of the two ways.
std::array<Clock::duration, 2> time_both(Member& member, Arrays& arrays, std::size_t bytes) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(member.size()));
  std::fill_n(rows.begin(), std::min(member.size(), tested_ranks),
              static_cast<std::int64_t>(bytes));
  const auto block = rows[static_cast<std::size_t>(member.rank())];
  const Op op{.kind = Operation::all_gather,
              .in = TensorView(arrays.in.data(), DType::u8, {block}),
              .out = TensorView(arrays.out.data(), DType::u8, {Rows(rows).offset(member.size())}),
              .rows = rows};
  std::array least{Clock::duration::max(), Clock::duration::max()};
  for (int round = 0; round < rounds; ++round)
    for (const bool reads : {false, true}) {
      const auto begin = Clock::now();
      Collective(member, op, false, 0, reads).run_whole(true);
      auto& time = least[reads ? 1 : 0];
      if (round != 0) time = std::min(time, Clock::now() - begin);
    }
  return least;
}

}  // namespace

// In agreements 0 is never, and i + 1 is tested_reads[i].
void Collective::find_read_threshold() {
  const auto wanted = member_.reads().wanted();
  // Before a rank tries to read: a system may end a process for it.
  auto agreed = member_.agree(wanted.value_or(true) ? 1 : 0);
  if (agreed != 0) {
    const bool decides = rank_ == 0;
    std::optional<Arrays> arrays;
    try {
      arrays.emplace(size_);
    } catch (const std::bad_alloc&) {  // Then slots serve.
    }
    std::uint32_t own = arrays && direct_->can_read() ? all_agree : 0;
    if (own != 0 && decides) own = wanted ? 1 : to_be_tested;
    agreed = member_.agree(own);
    if (agreed == to_be_tested) {
      own = 0;
      for (std::size_t i = 0; i < tested_reads.size(); ++i) {
        const auto [slots, reads] = time_both(member_, *arrays, tested_reads[i]);
        if (own == 0 && reads < slots) own = static_cast<std::uint32_t>(i + 1);
      }
      // By the times of one rank, so that all ranks decide the same.
      agreed = member_.agree(decides ? own : all_agree);
    }
  }
  member_.reads().set(agreed == 0 ? ReadThreshold::never : tested_reads[agreed - 1]);
}

}  // namespace tutti::backend::memory
