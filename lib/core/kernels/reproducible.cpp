#include "kernels/reproducible.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/reduce_arithmetic.hpp"
#include "kernels/reduce_types.hpp"

#ifdef TUTTI_HIGHWAY
#include "kernels/reduce_simd.hpp"
#endif

namespace tutti::internal {
namespace {

using Kind = ReduceOp::Kind;

/// While this exists, the thread rounds to nearest and keeps subnormal numbers.
class IeeeArithmetic {
 public:
  IeeeArithmetic() noexcept : before_(get()) {
    if (const auto wanted = before_ & ~changes; wanted != before_) set(wanted);
  }
  ~IeeeArithmetic() {
    if ((before_ & changes) != 0) set(before_);
  }
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t changes = 0xe040;  // FTZ, rounding, DAZ.
  static std::uint64_t get() noexcept {
    return _mm_getcsr();
  }
  static void set(std::uint64_t value) noexcept {
    _mm_setcsr(static_cast<unsigned>(value));
  }
#elif defined(__aarch64__)
  static constexpr std::uint64_t changes = 0x1c80000;  // FZ16 | FZ, rounding.
  static std::uint64_t get() noexcept {
    std::uint64_t value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(std::uint64_t value) noexcept {
    asm volatile("msr fpcr, %0" : : "r"(value));
  }
#else
  static constexpr std::uint64_t changes = 0;
  static std::uint64_t get() noexcept {
    return 0;
  }
  static void set(std::uint64_t) noexcept {}
#endif
  std::uint64_t before_;
};

}  // namespace

bool has_reproducible_sum(DType dtype, Kind kind) noexcept {
  const bool floats = is_float(dtype) || dtype == DType::complex64 || dtype == DType::complex128;
  return floats && (kind == Kind::sum || kind == Kind::avg || kind == Kind::premul_sum);
}

void fold_reproducible(DType dtype, Kind kind, void* out, std::span<const void* const> inputs,
                       std::span<const double> scales, std::size_t n) noexcept {
  assert(has_reproducible_sum(dtype, kind) && !inputs.empty() && inputs.size() <= most_addends);
  if (n == 0) return;
  const IeeeArithmetic ieee;
#ifdef TUTTI_HIGHWAY
  if (const auto fn = simd::reproducible_sum(dtype))
    return fn(out, inputs, scales, kind == Kind::avg, n);
#endif
  scalar::fold_reproducible(dtype, kind, out, inputs, scales, n);
}

}  // namespace tutti::internal

namespace tutti::internal::scalar {
namespace {

__extension__ using Int128 = __int128;

/// The format of the addends.
template <typename F>
struct Format {
  using Bits = std::conditional_t<sizeof(F) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int digits = std::numeric_limits<F>::digits;
  static constexpr int log_bin = sizeof(F) == 4 ? 4 : 5;
  static constexpr int bin_width = 1 << log_bin;
  static constexpr int least_exponent = std::numeric_limits<F>::min_exponent - 1;  // Of normals.
  static constexpr int special = 2 * std::numeric_limits<F>::max_exponent - 1;
  static constexpr Bits hidden = Bits{1} << (digits - 1);

  static int exponent(F x) noexcept {
    return static_cast<int>(std::bit_cast<Bits>(x) >> (digits - 1)) & special;
  }
  static Bits mantissa(F x) noexcept {
    const auto fraction = std::bit_cast<Bits>(x) & (hidden - 1);
    return exponent(x) == 0 ? fraction : fraction | hidden;
  }
};

/// value / 2^shift, rounded to nearest even; 2^-shift value for a negative shift.
Int128 shifted(std::uint64_t value, int shift) noexcept {
  if (shift <= 0) return Int128{value} << -shift;
  if (shift > 64) return 0;
  const auto half = std::uint64_t{1} << (shift - 1);
  auto kept = shift == 64 ? 0 : value >> shift;
  const auto rest = value - (shift == 64 ? 0 : kept << shift);
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  return Int128{kept};
}

enum class Rounding { to_nearest, to_odd };

/// sum * 2^exponent in F. To odd: another rounding to nearest, to at most digits - 2 bits, gives
/// what it would of the exact sum.
template <typename F>
F rounded(Int128 sum, int exponent, Rounding rounding) noexcept {
  using Fo = Format<F>;
  using Bits = typename Fo::Bits;
  __extension__ using Magnitude = unsigned __int128;
  if (sum == 0) return 0;
  const auto magnitude = sum < 0 ? -static_cast<Magnitude>(sum) : static_cast<Magnitude>(sum);
  const auto upper = static_cast<std::uint64_t>(magnitude >> 64);
  const auto lower = static_cast<std::uint64_t>(magnitude);
  const int bits = upper != 0 ? 128 - std::countl_zero(upper) : 64 - std::countl_zero(lower);
  // The unit of the result, in units of the sum.
  const int drop = std::max(bits - Fo::digits, Fo::least_exponent - (Fo::digits - 1) - exponent);
  auto kept = drop <= 0 ? magnitude << -drop : magnitude >> drop;
  if (drop > 0) {
    const auto rest = magnitude - (kept << drop);
    const auto half = Magnitude{1} << (drop - 1);
    if (rounding == Rounding::to_odd)
      kept |= rest != 0 ? 1 : 0;
    else if (rest > half || (rest == half && (kept & 1) != 0))
      ++kept;
  }
  // The hidden bit and a carry out of the mantissa raise the exponent.
  const int biased = exponent + drop + (Fo::digits - 1) - Fo::least_exponent;
  const auto number = (static_cast<Magnitude>(biased) << (Fo::digits - 1)) + kept;
  const auto infinity = static_cast<Magnitude>(Fo::special) << (Fo::digits - 1);
  const auto found = static_cast<Bits>(std::min(number, infinity));
  return std::bit_cast<F>(static_cast<Bits>(found | (sum < 0 ? ~(~Bits{0} >> 1) : 0)));
}

/// The sum of one element of all inputs.
template <typename F>
class Sum {
 public:
  /// Every addend is given to see() before any is given to add().
  void see(F x) noexcept {
    const int exponent = Fo::exponent(x);
    if (exponent == Fo::special)
      special_ += x;  // +-infinity or NaN, in any order.
    else
      bin_ = std::max(bin_, exponent >> Fo::log_bin);
  }
  void add(F x) noexcept {
    const int shift = unit() - (std::max(Fo::exponent(x), 1) - Fo::special / 2 - (Fo::digits - 1));
    const auto part = Fo::exponent(x) == Fo::special ? 0 : shifted(Fo::mantissa(x), shift);
    sum_ += is_negative(x) ? -part : part;
  }
  F result(Rounding rounding) const noexcept {
    if (std::isnan(special_)) return std::numeric_limits<F>::quiet_NaN();
    if (special_ != 0) return special_;
    return rounded<F>(sum_, unit(), rounding);
  }

 private:
  using Fo = Format<F>;
  /// The exponent of q.
  int unit() const noexcept { return Fo::bin_width * (bin_ - 2) + Fo::least_exponent; }

  int bin_ = 0;
  F special_ = 0;
  Int128 sum_ = 0;
};

template <typename T, typename F>
void fold(void* out, std::span<const void* const> inputs, std::span<const double> scales,
          bool average, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const auto term = [&](std::size_t k) {
      const F x = load<T>(static_cast<const std::byte*>(inputs[k]) + i * sizeof(T));
      return scales.empty() ? x : scaled(x, scales[k]);
    };
    Sum<F> sum;
    for (std::size_t k = 0; k < inputs.size(); ++k) sum.see(term(k));
    for (std::size_t k = 0; k < inputs.size(); ++k) sum.add(term(k));
    const bool narrows = sizeof(T) < sizeof(F) && !average;
    F result = sum.result(narrows ? Rounding::to_odd : Rounding::to_nearest);
    if (average) result = internal::divide(result, inputs.size());
    store<T>(static_cast<std::byte*>(out) + i * sizeof(T), result);
  }
}

}  // namespace

// Not inlined: the compiler may move arithmetic across a change of the control register.
[[gnu::noinline]] void fold_reproducible(DType dtype, ReduceOp::Kind kind, void* out,
                                         std::span<const void* const> inputs,
                                         std::span<const double> scales, std::size_t n) noexcept {
  const bool average = kind == ReduceOp::Kind::avg;
  visit_type(dtype, [&]<typename T>(T) {
    if constexpr (std::is_same_v<T, Complex<float>>)
      fold<float, float>(out, inputs, scales, average, 2 * n);
    else if constexpr (std::is_same_v<T, Complex<double>>)
      fold<double, double>(out, inputs, scales, average, 2 * n);
    else if constexpr (std::is_floating_point_v<Acc<T>>)
      fold<T, Acc<T>>(out, inputs, scales, average, n);
  });
}

}  // namespace tutti::internal::scalar
