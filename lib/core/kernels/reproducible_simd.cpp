#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/reduce_simd.hpp"
#include "kernels/reproducible.hpp"

// The algorithm is in reproducible.hpp. This file is compiled once per instruction set, for the
// same ones as reduce_simd.cpp. Lanes never meet, so the length of a vector does not matter.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reproducible_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/elements_simd.inc"

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

SumFn sum_of(DType) {
  return nullptr;
}

#else

namespace {

/// Vectors of one element of every input. `fixed`: the number of inputs, which are not scaled,
/// known to the compiler, which then loads each once; 0: any.
template <class E, std::size_t fixed>
struct Terms {
  using Element = E;
  using D = typename E::Tag;
  Inputs inputs;
  Scales scales;
  bool average;
  std::size_t offset = 0;  // In bytes.
  std::array<const void*, fixed> arrays{};

  Terms(Inputs of, Scales by, bool is_average) : inputs(of), scales(by), average(is_average) {
    for (std::size_t k = 0; k < fixed; ++k) arrays[k] = of[k];
  }
  std::size_t count() const { return fixed == 0 ? inputs.size() : fixed; }
  HWY_INLINE auto load(std::size_t k) const {
    const D d;
    const auto x = E::load(d, at(fixed == 0 ? inputs[k] : arrays[k], offset));
    if (fixed != 0 || scales.empty()) return x;
    return hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(scales[k])));
  }
  /// The largest magnitude, as bits.
  HWY_INLINE auto top() const {
    const hn::RebindToSigned<D> di;
    const auto magnitude = hn::Set(di, std::numeric_limits<hn::TFromD<decltype(di)>>::max());
    auto largest = hn::Zero(di);
    for (std::size_t k = 0; k < count(); ++k)
      largest = hn::Max(largest, hn::And(hn::BitCast(di, load(k)), magnitude));
    return largest;
  }
};

template <class T>
inline constexpr bool is_double = std::is_same_v<typename T::Element, Plain<double>>;

/// Rounds addends to multiples of the unit. `limit`: the bits of 2^23 units (f64: 2^52), or a
/// negative number where no addend is rounded. A larger addend is a multiple as it is; the sum of a
/// smaller one and the limit has the unit in its last place.
template <class D, class VI>
HWY_INLINE hn::Vec<D> rounded(D d, VI limit, hn::Vec<D> x) {
  const auto large = hn::CopySign(hn::BitCast(d, limit), x);
  const auto is_small = hn::Lt(hn::BitCast(hn::RebindToSigned<D>(), hn::Abs(x)), limit);
  return hn::IfThenElse(hn::RebindMask(d, is_small), hn::Sub(hn::Add(x, large), large), x);
}

/// a + b = sum + rest, exactly (Knuth's TwoSum).
template <class V>
HWY_INLINE void add_exactly(V a, V b, V& sum, V& rest) {
  sum = hn::Add(a, b);
  const V b_part = hn::Sub(sum, a);
  rest = hn::Add(hn::Sub(a, hn::Sub(sum, b_part)), hn::Sub(b, b_part));
}

/// sum + rest, the result of add_exactly(), rounded to odd: of two neighbours the one with an odd
/// mantissa.
template <class D>
HWY_INLINE hn::Vec<D> rounded_to_odd(D d, hn::Vec<D> sum, hn::Vec<D> rest) {
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, sum);
  const auto one = hn::Set(di, 1);
  // Away from zero if the rest has the sign of the sum.
  const auto step = hn::Or(hn::BroadcastSignBit(hn::Xor(bits, hn::BitCast(di, rest))), one);
  const auto is_even = hn::Eq(hn::And(bits, one), hn::Zero(di));
  const auto moves = hn::And(is_even, hn::RebindMask(di, hn::Gt(hn::Abs(rest), hn::Zero(d))));
  return hn::BitCast(d, hn::Add(bits, hn::IfThenElseZero(moves, step)));
}

template <class D>
HWY_INLINE hn::Vec<D> with_canonical_nan(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  constexpr auto nan =
      sizeof(hn::TFromD<D>) == 4 ? std::int64_t{0x7fc00000} : std::int64_t{0x7ff8} << 48;
  const auto canonical = hn::Set(di, static_cast<hn::TFromD<decltype(di)>>(nan));
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, canonical), x);
}

// ---- Addends of f32 -----------------------------------------------------------------------------

/// f64 adds this many multiples of the unit, of magnitudes up to 2^47 units, exactly.
constexpr std::size_t most_exact = 63;

/// The sum of half a vector of f32, in f64: exact, or rounded to odd.
template <class T, class VI>
HWY_INLINE auto sum_of_half(const T& terms, VI limit, bool rounds, bool upper) {
  using D = typename T::D;
  const hn::Half<D> half;
  const hn::Rebind<double, hn::Half<D>> dd;
  auto sum = hn::Zero(dd);
  auto rests = hn::Zero(dd);
  for (std::size_t k = 0; k < terms.count(); ++k) {
    const auto x = rounds ? rounded(D(), limit, terms.load(k)) : terms.load(k);
    const auto wide = hn::PromoteTo(dd, upper ? hn::UpperHalf(half, x) : hn::LowerHalf(half, x));
    if (terms.count() <= most_exact) {
      sum = hn::Add(sum, wide);
    } else {
      auto rest = hn::Zero(dd);
      add_exactly(sum, wide, sum, rest);
      rests = hn::Add(rests, rest);
    }
  }
  if (terms.count() <= most_exact) return sum;
  auto all = hn::Zero(dd);
  auto rest = hn::Zero(dd);
  add_exactly(sum, rests, all, rest);
  return hn::IfThenElse(hn::IsFinite(sum), rounded_to_odd(dd, all, rest), sum);
}

/// Numbers of f64 in f32, rounded to odd, for one more rounding to fewer bits. Exact below the
/// normal numbers of f32, where all sums are multiples of its least one.
template <class DD>
HWY_INLINE auto narrowed_to_odd(DD dd, hn::Vec<DD> x) {
  const hn::RebindToUnsigned<DD> du;
  constexpr std::uint64_t dropped = (std::uint64_t{1} << 29) - 1;
  const auto bits = hn::BitCast(du, x);
  const auto rest = hn::And(bits, hn::Set(du, dropped));
  const auto odd = hn::And(hn::Add(rest, hn::Set(du, dropped)), hn::Set(du, dropped + 1));
  return hn::BitCast(dd, hn::Or(hn::Sub(bits, rest), odd));
}

/// Writes one vector to `to`.
template <class T>
HWY_INLINE void sum_vector(std::byte* to, const T& terms) requires(!is_double<T>) {
  using E = typename T::Element;
  using D = typename T::D;
  const D d;
  const hn::RebindToSigned<D> di;
  constexpr bool is_float = std::is_same_v<E, Plain<float>>;
  // Addends of these formats are multiples of the unit, unless they are scaled.
  constexpr bool is_small = sizeof(typename E::Stored) == 1 || std::is_same_v<E, Half>;
  const bool rounds = !is_small || !terms.scales.empty();
  auto limit = hn::Zero(di);
  if (rounds) limit = hn::Sub(hn::And(terms.top(), hn::Set(di, 0x78000000)), hn::Set(di, 8 << 23));
  auto sum = hn::Zero(d);
  if (is_float && terms.count() == 2) {
    sum = hn::Add(rounded(d, limit, terms.load(0)), rounded(d, limit, terms.load(1)));
    sum = hn::Add(sum, hn::Zero(d));  // A zero is +0.
  } else {
    auto lower = sum_of_half(terms, limit, rounds, false);
    auto upper = sum_of_half(terms, limit, rounds, true);
    const hn::Half<D> half;
    const hn::Rebind<double, hn::Half<D>> dd;
    if (!is_float && !terms.average) {
      lower = narrowed_to_odd(dd, lower);
      upper = narrowed_to_odd(dd, upper);
    }
    sum = hn::Combine(d, hn::DemoteTo(half, upper), hn::DemoteTo(half, lower));
  }
  sum = with_canonical_nan(d, sum);
  if (terms.average) sum = hn::Div(sum, hn::Set(d, static_cast<float>(terms.count())));
  E::store(d, sum, to);
}

// ---- Addends of f64 -----------------------------------------------------------------------------

/// The rests of this many partial sums are multiples of the unit, and fewer than 2^53 of them.
constexpr std::size_t few = 32;

/// The sum of rounded addends, rounded once.
template <class T, class VI>
HWY_INLINE auto sum_with_rests(const T& terms, VI limit, hn::Vec<typename T::D> scale) {
  const typename T::D d;
  auto sum = hn::Zero(d);
  auto rests = hn::Zero(d);
  auto rest = hn::Zero(d);
  auto last_rests = hn::Zero(d);  // Those of `rests`.
  for (std::size_t k = 0; k < terms.count(); ++k) {
    add_exactly(sum, hn::Mul(rounded(d, limit, terms.load(k)), scale), sum, rest);
    if (terms.count() <= few) {
      rests = hn::Add(rests, rest);
    } else {
      add_exactly(rests, rest, rests, rest);
      last_rests = hn::Add(last_rests, rest);
    }
  }
  if (terms.count() <= few) return hn::Add(sum, rests);
  // Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
  // rounding to odd", 2008.
  add_exactly(rests, last_rests, rests, last_rests);
  add_exactly(sum, rests, sum, rests);
  add_exactly(rests, last_rests, rests, rest);
  return hn::Add(sum, rounded_to_odd(d, rests, rest));
}

/// For vectors with addends of which a partial sum could overflow, or that are not finite.
template <class T, class VI>
HWY_NOINLINE hn::Vec<typename T::D> sum_of_large(T terms, VI top, VI limit) {
  const typename T::D d;
  const hn::RebindToSigned<typename T::D> di;
  const auto is_large = hn::RebindMask(d, hn::Gt(top, hn::Set(di, std::int64_t{0x7c0} << 52)));
  const auto one = hn::Set(d, 1.0);
  const auto sum =
      hn::Mul(sum_with_rests(terms, limit, hn::IfThenElse(is_large, hn::Set(d, 0x1p-64), one)),
              hn::IfThenElse(is_large, hn::Set(d, 0x1p64), one));
  auto plain = hn::Zero(d);
  for (std::size_t k = 0; k < terms.count(); ++k)  // Of infinities and NaNs, without overflow.
    plain = hn::Add(plain, hn::Mul(terms.load(k), hn::Set(d, 0x1p-64)));
  const auto special = hn::Gt(top, hn::Set(di, (std::int64_t{0x7ff} << 52) - 1));
  return with_canonical_nan(d, hn::IfThenElse(hn::RebindMask(d, special), plain, sum));
}

template <class T>
HWY_INLINE void sum_vector(std::byte* to, const T& terms) requires(is_double<T>) {
  const typename T::D d;
  const hn::RebindToSigned<typename T::D> di;
  const auto top = terms.top();
  const auto limit = hn::Sub(hn::And(top, hn::Set(di, std::int64_t{0x7e0} << 52)),
                             hn::Set(di, std::int64_t{11} << 52));
  auto sum = hn::Zero(d);
  if (HWY_UNLIKELY(!hn::AllFalse(di, hn::Gt(top, hn::Set(di, std::int64_t{0x7c0} << 52)))))
    sum = sum_of_large(terms, top, limit);
  else if (terms.count() == 2)
    sum = hn::Add(hn::Add(rounded(d, limit, terms.load(0)), rounded(d, limit, terms.load(1))),
                  hn::Zero(d));
  else
    sum = sum_with_rests(terms, limit, hn::Set(d, 1.0));
  if (terms.average) sum = hn::Div(sum, hn::Set(d, static_cast<double>(terms.count())));
  Plain<double>::store(d, sum, to);
}

// ---- Arrays -------------------------------------------------------------------------------------

template <class T>
HWY_NOINLINE void sum_last(std::byte* to, T terms) {
  sum_vector(to, terms);
}

template <class T>
void sum_all(void* out, T terms, std::size_t n) {
  constexpr std::size_t element = sizeof(typename T::Element::Stored);
  const typename T::D d;
  const std::size_t vector = hn::Lanes(d) * element;
  // The last vector overlaps the one before it, whose inputs may be in `out`.
  HWY_ALIGN std::byte last[hn::MaxLanes(d) * element];
  terms.offset = n * element - vector;
  sum_last(last, terms);
  for (terms.offset = 0; terms.offset + vector <= n * element; terms.offset += vector)
    sum_vector(at(out, terms.offset), terms);
  const std::size_t rest = n * element - terms.offset;
  std::memcpy(at(out, terms.offset), last + vector - rest, rest);
}

template <class E>
void sum(void* out, Inputs inputs, Scales scales, bool average, std::size_t n) {
  if (inputs.size() == 2 && scales.empty())
    return sum_all(out, Terms<E, 2>(inputs, scales, average), n);
  if (inputs.size() == 4 && scales.empty())
    return sum_all(out, Terms<E, 4>(inputs, scales, average), n);
  sum_all(out, Terms<E, 0>(inputs, scales, average), n);
}

/// `per_element`: 2 for complex numbers.
template <class E, DType dtype, std::size_t per_element = 1>
void entry(void* out, Inputs inputs, Scales scales, bool average, std::size_t n) noexcept {
  if (n * per_element >= hn::Lanes(typename E::Tag()))
    return sum<E>(out, inputs, scales, average, n * per_element);
  const auto kind = average          ? ReduceOp::Kind::avg
                    : scales.empty() ? ReduceOp::Kind::sum
                                     : ReduceOp::Kind::premul_sum;
  scalar::fold_reproducible(dtype, kind, out, inputs, scales, n);
}

}  // namespace

SumFn sum_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &entry<Plain<float>, DType::f32>;
    case DType::f64:
      return &entry<Plain<double>, DType::f64>;
    case DType::complex64:
      return &entry<Plain<float>, DType::complex64, 2>;
    case DType::complex128:
      return &entry<Plain<double>, DType::complex128, 2>;
    case DType::f16:
      return &entry<Half, DType::f16>;
    case DType::bf16:
      return &entry<Brain, DType::bf16>;
    case DType::f8e4m3:
      return &entry<Small<Float8E4M3, 4, 3, false>, DType::f8e4m3>;
    case DType::f8e5m2:
      return &entry<Small<Float8E5M2, 5, 2, true>, DType::f8e5m2>;
    default:
      return nullptr;
  }
}

#endif

}  // namespace tutti::internal::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::internal::simd {

HWY_EXPORT(sum_of);

SumFn reproducible_sum(DType dtype) noexcept {
  return HWY_DYNAMIC_DISPATCH(sum_of)(dtype);
}

}  // namespace tutti::internal::simd
#endif
