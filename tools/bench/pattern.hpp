#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

namespace tutti::tool {

/// A good 64-bit hash of a counter: the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast
/// splittable pseudorandom number generators", figure 16).
constexpr std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// The wrong elements of an array. A value type.
struct Mismatches {
  struct First {
    std::int64_t index = 0;  ///< Element index; outside of the array for a damaged guard byte.
    std::string expected{};
    std::string got{};
  };
  std::int64_t count = 0;
  std::optional<First> first{};
};

/// The data of a measurement: an integer for every (rank, index), chosen so that reductions over
/// the ranks are exact in the dtype, for any order and rounding. Results are compared bit by bit,
/// without a tolerance.
///
/// Sums are at most the largest n for which the dtype represents all integers up to n (2^24 in f32,
/// 8 in f8e5m2). Products are at most 64, from factors 1 and 2. In bitwise operations one rank
/// decides the result, a different one for every index. Data that is only moved has random bits in
/// an integer type and random exact integers in a float type.
class Pattern {
 public:
  /// `op` is empty for data that is only moved. If `exact_in` is given, reductions are exact in
  /// that dtype too.
  Pattern(DType dtype, std::optional<ReduceOp::Kind> op, int ranks, std::uint64_t seed,
          std::optional<DType> exact_in = {});

  /// data[i] = the value of (rank, first + i).
  void fill(void* data, std::int64_t count, int rank, std::int64_t first) const;

  /// Element i is the reduction over ranks [rank_begin, rank_end) of their element first + i. Over
  /// no ranks it is the operation's identity, or 0 for data that is only moved.
  struct Source {
    int rank_begin = 0;
    int rank_end = 0;
    std::int64_t first = 0;
  };
  Mismatches check(const void* data, std::int64_t count, const Source& source) const;

  /// Compares data with the values that fill() wrote with the same arguments.
  Mismatches check_filled(const void* data, std::int64_t count, int rank, std::int64_t first) const;

  /// The scale of premul_sum on a rank.
  static double scale_of(int rank) noexcept { return 1 + rank % 2; }

 private:
  enum class Values : std::uint8_t { bits, bounded, balanced, twos, one_clears, one_sets };

  std::int64_t value(int rank, std::int64_t index) const noexcept;
  std::int64_t reduced(const Source& source, std::int64_t index) const noexcept;
  template <typename T>
  T expected(const Source& source, std::int64_t index) const noexcept;
  template <typename T>
  T identity() const noexcept;

  DType dtype_;
  std::optional<ReduceOp::Kind> op_;
  int ranks_;
  std::uint64_t seed_;
  Values values_ = Values::bits;
  std::uint64_t limit_ = 0;  // bounded, balanced: the largest magnitude.
  std::int64_t stride_ = 1;  // bounded, twos: one in this many ranks contributes to an element.
};

}  // namespace tutti::tool
