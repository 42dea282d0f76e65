#include "reads.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "collectives.hpp"
#include "member.hpp"
#include "values/environment_switch.hpp"

namespace tutti::backend::memory {
namespace {

using Clock = std::chrono::steady_clock;

/// The bytes of the blocks for which the test compares both ways.
constexpr std::array tested{std::size_t{32} << 10, std::size_t{256} << 10};
constexpr std::int64_t by_test = -1;  // Of TUTTI_SHM_READS: it is not set.
constexpr std::uint32_t all_agree = ~std::uint32_t{0};
constexpr std::uint32_t to_be_tested = std::uint32_t{1} << 31;
/// The ranks with a block in the test; more would take more memory.
constexpr int tested_ranks = 8;
constexpr int rounds = 6;  // The first does not count.

/// The arrays of the test.
struct Arrays {
  explicit Arrays(int size)
      : in(tested.back()),
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
      Collective collective(member, op, false, 0, reads);
      collective.begin();
      collective.prepare();
      collective.run();
      auto& time = least[reads ? 1 : 0];
      if (round != 0) time = std::min(time, Clock::now() - begin);
    }
  return least;
}

}  // namespace

bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  while (bytes != 0) {
    const iovec local{to, bytes};
    const iovec remote{const_cast<std::byte*>(from), bytes};
    const auto got = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (got <= 0) return false;
    to += got;
    from += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

ReadThreshold::ReadThreshold()
    : permitted_(internal::environment_number("TUTTI_SHM_READS", by_test, 1)), bytes_(tested[0]) {}

void ReadThreshold::find(Member& member, bool able) {
  const bool decides = member.rank() == 0;
  auto own = able && permitted_ != 0 ? all_agree : 0;
  if (own != 0 && decides && permitted_ == by_test) own = to_be_tested;
  auto agreed = member.agree(own);
  if (agreed == to_be_tested) {
    Arrays arrays(member.size());
    std::uint32_t least = 0;
    for (const auto bytes : tested) {
      const auto [slots, reads] = time_both(member, arrays, bytes);
      if (least == 0 && reads < slots) least = static_cast<std::uint32_t>(bytes);
    }
    // By the times of one rank, so that all ranks decide the same.
    agreed = member.agree(decides ? least : all_agree);
  } else if (agreed != 0) {
    agreed = static_cast<std::uint32_t>(tested[0]);
  }
  known_ = true;
  bytes_ = agreed == 0 ? never : agreed;
}

std::string describe_reads() {
  Arrays arrays(1);
  auto least = Clock::duration::max();
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    (void)read_process(::getpid(), arrays.out.data(), arrays.in.data(), arrays.in.size());
    least = std::min(least, Clock::now() - begin);
  }
  return fmt::format(
      "private arrays of processes that a rank only reads: by process_vm_readv(), if the first "
      "call "
      "with blocks of {} bytes finds that faster (TUTTI_SHM_READS); {} bytes take {:.1f} us here\n",
      tested[0], arrays.in.size(), std::chrono::duration<double, std::micro>(least).count());
}

}  // namespace tutti::backend::memory
