#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "collectives.hpp"
#include "thresholds.hpp"

// The tests that decide whether private arrays are read (ReadChoice).

namespace tutti::backend::memory {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t all_agree = (std::uint32_t{1} << Member::agreed_bits) - 1;
/// Of an agreement on the result of a test: it is complete. The other bits: ReadChoice::kinds.
constexpr std::uint32_t is_settled = std::uint32_t{1} << (Member::agreed_bits - 1);

/// The ranks with a block in an all_gather; more would take more memory.
constexpr std::size_t tested_ranks = 8;
constexpr std::size_t most_bytes = std::size_t{8} << 20;  // Of all blocks, for more than two ranks.
constexpr int calls = 3;                                  // In a row. The first does not count.
constexpr int rounds = 6;                                 // The first does not count.
constexpr int most_tests = 3;
/// Two tests whose ratios differ by less are taken.
constexpr double agreement = 0.1;
/// A test that takes longer is not repeated: its calls are long, so it is less noisy.
constexpr std::chrono::milliseconds long_test{100};

/// An array in pages of its own: freeing a large one with malloc() would change how malloc() serves
/// the arrays of the program.
class Pages {
 public:
  /// @throws std::bad_alloc.
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    std::memset(data_, 1, bytes);
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// A collective of private arrays, and its times in both ways.
class Test {
 public:
  /// @throws std::bad_alloc.
  Test(Member& member, Operation kind, std::size_t bytes)
      : member_(member),
        kind_(kind),
        block_(static_cast<std::int64_t>(bytes)),
        rows_(static_cast<std::size_t>(member.size())) {
    const auto fit = std::clamp<std::size_t>(most_bytes / bytes, 2, tested_ranks);
    const auto blocks = std::min(rows_.size(), fit);
    std::fill_n(rows_.begin(), blocks, block_);
    data_.emplace(bytes * (kind == Operation::broadcast ? 1 : blocks));
  }

  /// The medians of this rank's times of a call in both ways, in seconds.
  Ways times() {
    std::vector<double> slots;
    std::vector<double> reads;
    for (int round = 0; round < rounds; ++round) {
      const auto through_slots = time(false);
      const auto by_reads = time(true);
      if (round == 0) continue;
      slots.push_back(through_slots);
      reads.push_back(by_reads);
    }
    return {median(slots), median(reads)};
  }

  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  }

 private:
  double time(bool reads) {
    Clock::time_point begin;
    for (int call = 0; call <= calls; ++call) {
      (void)member_.agree(all_agree);  // All ranks begin together, and have taken all rounds.
      if (call == 1) begin = Clock::now();
      if (call < calls) run(reads);
    }
    return std::chrono::duration<double>(Clock::now() - begin).count() / (calls - 1);
  }

  void run(bool reads) {
    Op op{.kind = kind_};
    if (kind_ == Operation::broadcast) {
      op.root = root_ = (root_ + 1) % member_.size();
      op.out = TensorView(data_->data(), DType::u8, {block_});
      op.in = op.out;
      if (!reads) member_.skip_to(member_.first_round_of(op.root));
    } else {
      const Rows rows(rows_);
      const auto mine = rows_[static_cast<std::size_t>(member_.rank())];
      op.in = TensorView(data_->data() + rows.offset(member_.rank()), DType::u8, {mine});
      op.out = TensorView(data_->data(), DType::u8, {rows.offset(member_.size())});
      op.rows = rows;
    }
    Collective(member_, op, false, 0, reads).run_whole(true);
  }

  Member& member_;
  Operation kind_;
  std::int64_t block_;
  int root_ = 0;
  std::vector<std::int64_t> rows_;
  std::optional<Pages> data_;
};

/// The result of the tests so far, by their ratios of reads / slots; nothing: another is needed.
std::optional<double> settle(const std::vector<double>& ratios, Clock::duration time) {
  for (std::size_t i = 0; i < ratios.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (std::abs(ratios[i] - ratios[j]) <= agreement * std::min(ratios[i], ratios[j]))
        return (ratios[i] + ratios[j]) / 2;
  if (ratios.size() < most_tests && time < long_test) return {};
  return Test::median(ratios);
}

/// With more ranks per core a test would take seconds of a call's deadline; then slots serve.
constexpr std::size_t most_ranks_per_core = 8;

/// For the operations with the costs of `kind`: a bit for each that is read. The same on all ranks.
std::uint32_t test(Member& member, Operation kind, std::size_t bytes) {
  std::optional<Test> test;
  try {
    if (static_cast<std::size_t>(member.size()) <= most_ranks_per_core * member.cores())
      test.emplace(member, kind, bytes);
  } catch (const std::bad_alloc&) {  // Then slots serve.
  }
  if (member.agree(test ? 1 : 0) == 0) return 0;
  const auto begin = Clock::now();
  std::vector<double> ratios;
  for (;;) {
    const auto times = test->times();
    ratios.push_back(times.reads / times.slots);
    // By the times of one rank, so that all ranks decide the same.
    auto own = all_agree;
    if (member.rank() == 0) {
      own = 0;
      if (const auto ratio = settle(ratios, Clock::now() - begin)) {
        own = is_settled;
        for (std::size_t i = 0; i < ReadChoice::kinds.size(); ++i)
          if (reads_gain(ReadChoice::kinds[i], member.size(), member.cores(), {1, *ratio}))
            own |= std::uint32_t{1} << i;
      }
    }
    const auto agreed = member.agree(own);
    if ((agreed & is_settled) != 0) return agreed;
  }
}

}  // namespace

/// Once in a group. In the agreements 0 is never, 1 always.
void Collective::permit_reads() {
  using Permission = ReadChoice::Permission;
  auto& reads = member_.reads();
  const auto wanted = reads.wanted();
  // Before a rank tries to read: a system may end a process for it.
  auto agreed = member_.agree(wanted.value_or(true) ? 1 : 0);
  if (agreed != 0) {
    std::uint32_t own = direct_->can_read() ? all_agree : 0;
    if (own != 0 && rank_ == 0 && wanted) own = 1;
    agreed = member_.agree(own);
  }
  reads.permit(agreed == 0   ? Permission::never
               : agreed == 1 ? Permission::always
                             : Permission::tested);
}

void Collective::decide_reads() {
  auto& reads = member_.reads();
  if (reads.permission() == ReadChoice::Permission::unknown) permit_reads();
  if (reads.reads(op_.kind, block_)) return;
  const auto tested = tested_for(op_.kind);
  const auto bits = test(member_, tested, ReadChoice::tested_bytes(block_));
  for (std::size_t i = 0; i < ReadChoice::kinds.size(); ++i)
    if (tested_for(ReadChoice::kinds[i]) == tested)
      reads.set(ReadChoice::kinds[i], block_, (bits & (std::uint32_t{1} << i)) != 0);
}

}  // namespace tutti::backend::memory
