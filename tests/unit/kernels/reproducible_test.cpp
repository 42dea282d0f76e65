#include "kernels/reproducible.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/kernel_target.hpp"
#include "kernels/reduce.hpp"

#include "support/reproducible_sum.hpp"
#include "support/small_format.hpp"
#include "support/worlds.hpp"

namespace tutti::internal {
namespace {

using test::FloatFormat;
using test::format_of;
using test::Mutant;
using test::reproducible_sum;
using Kind = ReduceOp::Kind;
constexpr DType dtypes[] = {DType::f32,  DType::f64,    DType::f16,
                            DType::bf16, DType::f8e4m3, DType::f8e5m2};

double get(DType dtype, const std::byte* from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, size_of(dtype));
  if (dtype == DType::f64) return std::bit_cast<double>(bits);
  if (dtype == DType::f32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return test::small_format(dtype).decode(static_cast<std::uint32_t>(bits));
}
/// `value` is a number of the dtype, or beyond its largest.
std::uint64_t bits_of(DType dtype, double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  if (dtype == DType::f64) return std::bit_cast<std::uint64_t>(value);
  if (dtype == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return test::small_format(dtype).encode(value);
}

/// A number of the dtype near x, or 1.
double rounded_to(DType dtype, double x) {
  const auto bits = bits_of(dtype, x);
  const double y = get(dtype, reinterpret_cast<const std::byte*>(&bits));
  return std::isfinite(y) ? y : 1;
}

// ---- Data ---------------------------------------------------------------------------------------

/// Addends of one element, of a kind that finds certain faults. Normal data alone finds few.
class Addends {
 public:
  static constexpr int kinds = 9;
  Addends(DType dtype, std::uint32_t seed) : dtype_(dtype), random_(seed) {}

  double draw(int kind) {
    const FloatFormat f = format_of(dtype_);
    const int greatest = greatest_exponent();
    const int width = dtype_ == DType::f64 ? 32 : 16;
    switch (kind) {
      case 0:
        return rounded(normal_(random_));
      case 1:
        return any();
      case 2:  // Subnormal.
        return std::ldexp(std::trunc(std::ldexp(normal_(random_) / 8, f.digits - 1)),
                          f.least_exponent - f.digits + 1);
      case 3:  // Half units beside large numbers that cancel.
        return rounded(one_in(2) ? std::ldexp(sign(), anchor_)
                                 : std::ldexp(integer(-9, 9), unit_of(anchor_) - 1));
      case 4:  // Beside the ends of bins.
        return rounded(std::ldexp(1 + std::ldexp(integer(-2, 2), -f.digits),
                                  std::clamp(width * integer(-3, 3), f.least_exponent, greatest)) *
                       sign());
      case 5:
        return rounded(std::ldexp(normal_(random_), integer(-20, 20)));
      case 6:  // Sums that cancel.
        last_ =
            one_in(2) ? -last_ : rounded(std::ldexp(normal_(random_), anchor_ + integer(-2, 2)));
        return last_;
      case 7:
        return rounded(std::ldexp(1 + std::fabs(normal_(random_)) / 8, greatest - 1)) * sign();
      default:
        if (zeros_) return -0.0;
        if (one_in(4)) return rounded(std::ldexp(1.75, greatest)) * sign();
        return one_in(6) ? special() : sign() * (one_in(2) ? 0.0 : rounded(normal_(random_)));
    }
  }
  void next_element() {
    anchor_ = integer(-8, 8);
    kind_of_special_ = integer(0, 3);
    zeros_ = one_in(8);
  }
  int integer(int from, int to) { return std::uniform_int_distribution(from, to)(random_); }
  std::mt19937& random() { return random_; }

 private:
  int greatest_exponent() const {
    return dtype_ == DType::f64      ? 1023
           : dtype_ == DType::f8e4m3 ? 8
                                     : -format_of(dtype_).least_exponent + 1;
  }
  /// The exponent of the unit beside 2^exponent.
  int unit_of(int exponent) const {
    const int width = dtype_ == DType::f64 ? 32 : 16;
    const int least = format_of(dtype_ == DType::f64 ? DType::f64 : DType::f32).least_exponent;
    return width * ((exponent - least + 1) / width - 2) + least;
  }
  bool one_in(int n) { return integer(1, n) == 1; }
  double sign() { return one_in(2) ? -1 : 1; }
  double special() {
    const int kind = kind_of_special_ == 0 ? integer(1, 3) : kind_of_special_;  // One, or all.
    if (dtype_ == DType::f8e4m3 || kind == 3) return std::numeric_limits<double>::quiet_NaN();
    return (kind == 1 ? -1 : 1) * std::numeric_limits<double>::infinity();
  }
  double any() {
    const std::uint64_t bits = std::uint64_t{random_()} << 32 | random_();
    const double x = get(dtype_, reinterpret_cast<const std::byte*>(&bits));
    return std::isfinite(x) ? x : 0;
  }
  double rounded(double x) const { return rounded_to(dtype_, x); }

  DType dtype_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  int anchor_ = 0;
  int kind_of_special_ = 0;
  bool zeros_ = false;
  double last_ = 1;
};

/// The same elements of several inputs.
struct Problem {
  DType dtype;
  std::vector<std::vector<double>> addends;  ///< Of each element.
  std::vector<std::vector<std::byte>> inputs;

  Problem(Addends& data, DType of, int kind, std::size_t count, std::size_t elements)
      : dtype(of), inputs(count, std::vector<std::byte>(elements * size_of(of))) {
    for (std::size_t i = 0; i < elements; ++i) {
      data.next_element();
      auto& element = addends.emplace_back(count);
      for (auto& x : element) x = data.draw(kind);
      std::ranges::shuffle(element, data.random());
      for (std::size_t k = 0; k < count; ++k) {
        const auto bits = bits_of(of, element[k]);
        std::memcpy(&inputs[k][i * size_of(of)], &bits, size_of(of));
      }
    }
  }
  std::vector<const void*> pointers() const {
    std::vector<const void*> all;
    for (const auto& input : inputs) all.push_back(input.data());
    return all;
  }
  /// The number of elements whose bits are not expected(i).
  std::size_t wrong(const std::vector<std::byte>& out, std::size_t& first,
                    Mutant mutant = Mutant::none) const {
    std::size_t n = 0;
    for (std::size_t i = addends.size(); i-- > 0;) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &out[i * size_of(dtype)], size_of(dtype));
      if (bits == bits_of(dtype, reproducible_sum(dtype, addends[i], mutant))) continue;
      ++n;
      first = i;
    }
    return n;
  }
};

constexpr std::size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 32, 33, 63, 64, 127};

void check_sums(int rounds, std::uint32_t seed) {
  const auto targets = kernel_targets();
  for (const DType dtype : dtypes) {
    Addends data(dtype, seed);
    for (int round = 0; round < rounds; ++round) {
      const int kind = round % Addends::kinds;
      const auto count = counts[static_cast<std::size_t>(round) % std::size(counts)];
      const Problem problem(data, dtype, kind, count,
                            static_cast<std::size_t>(data.integer(1, 37)));
      auto inputs = problem.pointers();
      std::vector<std::byte> out(problem.inputs[0].size());
      const auto check = [&](std::string_view by) {
        std::size_t i = 0;
        ASSERT_EQ(problem.wrong(out, i), 0U)
            << by << ", " << name_of(dtype) << ", data of kind " << kind << ", " << count
            << " addends, element " << i << " of " << problem.addends.size();
      };
      const auto n = problem.addends.size();
      scalar::fold_reproducible(dtype, Kind::sum, out.data(), inputs, {}, n);
      ASSERT_NO_FATAL_FAILURE(check("scalar"));
      for (const auto target : targets) {
        choose_kernel_target(target);
        std::ranges::shuffle(inputs, data.random());
        fold_reproducible(dtype, Kind::sum, out.data(), inputs, {}, n);
        ASSERT_NO_FATAL_FAILURE(check(target));
        auto place = problem.inputs[0];  // `out` is an input.
        auto replaced = inputs;
        std::ranges::replace(replaced, static_cast<const void*>(problem.inputs[0].data()),
                             static_cast<const void*>(place.data()));
        fold_reproducible(dtype, Kind::sum, place.data(), replaced, {}, n);
        out = place;
        ASSERT_NO_FATAL_FAILURE(check(target));
      }
    }
  }
  choose_kernel_target("");
}

TEST(ReproducibleSums, HaveTheBitsOfTheirDefinition) {
  check_sums(test::reduced() ? 240 : 1200, 1);
}

TEST(SlowReproducibleSums, HaveTheBitsOfTheirDefinition) {
  for (std::uint32_t seed = 2; seed < 12; ++seed) check_sums(4000, seed);
}

// Partial sums are far above the unit, in which the least addends have bits, and cancel at the end.
TEST(ReproducibleSums, ManyAddendsKeepTheirLastBits) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    std::mt19937_64 random(5);
    const int below = dtype == DType::f64 ? 43 : 15;
    std::vector<std::vector<double>> addends(16, std::vector<double>(most_addends));
    std::vector<std::vector<std::byte>> inputs(most_addends,
                                               std::vector<std::byte>(16 * size_of(dtype)));
    std::vector<const void*> arrays;
    for (std::size_t k = 0; k < most_addends; ++k) {
      for (std::size_t i = 0; i < 16; ++i) {
        const double x = 1 + std::ldexp(static_cast<double>(random() >> 11U), -53);
        const double addend = k < 15                     ? std::ldexp(x, -below)
                              : k < most_addends / 2 + 8 ? x
                                                         : -addends[i][k - most_addends / 2 + 7];
        const auto bits = bits_of(dtype, rounded_to(dtype, addend));
        std::memcpy(&inputs[k][i * size_of(dtype)], &bits, size_of(dtype));
        addends[i][k] = get(dtype, &inputs[k][i * size_of(dtype)]);
      }
      arrays.push_back(inputs[k].data());
    }
    for (const auto target : kernel_targets()) {
      choose_kernel_target(target);
      std::vector<std::byte> out(16 * size_of(dtype));
      fold_reproducible(dtype, Kind::sum, out.data(), arrays, {}, 16);
      for (std::size_t i = 0; i < 16; ++i)
        EXPECT_EQ(get(dtype, &out[i * size_of(dtype)]), reproducible_sum(dtype, addends[i]))
            << target << ", " << name_of(dtype) << ", element " << i;
    }
    choose_kernel_target("");
  }
}

/// The data tell the definition from what a wrong implementation computes.
TEST(ReproducibleSums, TheDataNoticeMutants) {
  for (const auto mutant : {Mutant::truncates_addends, Mutant::rounds_half_up, Mutant::doubles_unit,
                            Mutant::bins_of_one, Mutant::keeps_zero_sign}) {
    std::size_t wrong = 0;
    for (const DType dtype : {DType::f32, DType::f64}) {
      Addends data(dtype, 1);
      for (int round = 0; round < 300; ++round) {
        const Problem problem(data, dtype, round % Addends::kinds,
                              2 + static_cast<std::size_t>(round) % 8, 20);
        std::vector<std::byte> out(problem.inputs[0].size());
        fold_reproducible(dtype, Kind::sum, out.data(), problem.pointers(), {}, 20);
        std::size_t first = 0;
        wrong += problem.wrong(out, first, mutant);
      }
    }
    EXPECT_GT(wrong, 9U) << "mutant " << static_cast<int>(mutant);
  }
}

/// The left fold depends on the order; the test above would pass with data that never show it.
TEST(ReproducibleSums, ALeftFoldOfTheDataDependsOnTheOrder) {
  Addends data(DType::f32, 1);
  const Problem problem(data, DType::f32, 5, 8, 1000);
  auto inputs = problem.pointers();
  std::vector<std::byte> forward(4000);
  std::vector<std::byte> backward(4000);
  fold(DType::f32, Kind::sum, forward.data(), inputs, {}, 1000);
  std::ranges::reverse(inputs);
  fold(DType::f32, Kind::sum, backward.data(), inputs, {}, 1000);
  EXPECT_NE(forward, backward);
}

#if defined(__x86_64__)
TEST(ReproducibleSums, TheControlRegisterDoesNotMatter) {
  const auto before = _mm_getcsr();
  for (const unsigned control : {0x8040U, 0x2000U, 0x4000U, 0x6000U}) {
    for (const DType dtype : dtypes) {
      Addends data(dtype, 3);
      for (int round = 0; round < 60; ++round) {
        const Problem problem(data, dtype, round % Addends::kinds,
                              2 + static_cast<std::size_t>(round) % 4, 20);
        std::vector<std::byte> out(problem.inputs[0].size());
        const auto inputs = problem.pointers();
        _mm_setcsr(before | control);
        fold_reproducible(dtype, Kind::sum, out.data(), inputs, {}, 20);
        const auto after = _mm_getcsr();
        _mm_setcsr(before);
        EXPECT_EQ(after & 0xffc0U, (before | control) & 0xffc0U);
        std::size_t first = 0;
        EXPECT_EQ(problem.wrong(out, first), 0U) << name_of(dtype) << ", " << control;
      }
    }
  }
}
#endif

/// Calls check() for each instruction set.
template <typename Check>
void on_targets(const Check& check) {
  for (const auto target : kernel_targets()) {
    choose_kernel_target(target);
    SCOPED_TRACE(target);
    check();
  }
  choose_kernel_target("");
}

TEST(ReproducibleSums, AveragesDivideTheSum) {
  const std::vector<float> a(40, 1e8F);
  const std::vector<float> b(40, 1);
  const std::vector<float> c(40, -1e8F);
  const void* const inputs[] = {a.data(), b.data(), c.data()};
  on_targets([&] {
    std::vector<float> out(40);
    fold_reproducible(DType::f32, Kind::avg, out.data(), inputs, {}, 40);
    EXPECT_EQ(out, std::vector(40, 1.0F / 3));
  });
}

TEST(ReproducibleSums, ProductsAreRoundedBeforeTheyAreAdded) {
  std::vector<float> x(40, 3);  // 20 complex numbers.
  for (std::size_t i = 1; i < x.size(); i += 2) x[i] = 1.5F;
  const void* const inputs[] = {x.data(), x.data(), x.data()};
  const double far[] = {1e20, 0.5, -1e20};
  const double near[] = {16, 0.5, -16};
  on_targets([&] {
    std::vector<float> out(40);
    fold_reproducible(DType::complex64, Kind::premul_sum, out.data(), inputs, far, 20);
    EXPECT_EQ(out, std::vector<float>(40));  // 0.5 is below the unit.
    fold_reproducible(DType::complex64, Kind::premul_sum, out.data(), inputs, near, 20);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(out[i], x[i] / 2);
  });
}

TEST(ReproducibleSums, OfFloatsAlone) {
  EXPECT_FALSE(has_reproducible_sum(DType::f32, Kind::prod));
  EXPECT_FALSE(has_reproducible_sum(DType::i32, Kind::sum));
  EXPECT_TRUE(has_reproducible_sum(DType::complex64, Kind::premul_sum));
}

}  // namespace
}  // namespace tutti::internal
