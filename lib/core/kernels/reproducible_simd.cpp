#include <cstddef>
#include <cstdint>
#include <cstring>
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

#include "kernels/elements_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

SumFn sum_of(DType) {
  return nullptr;
}

#else

namespace {

/// Vectors of one element of every input.
struct Terms {
  Inputs inputs;
  Scales scales;
  bool average;
  std::size_t offset;  // In bytes.

  template <class E>
  auto load(typename E::Tag d, std::size_t k) const {
    const auto x = E::load(d, at(inputs[k], offset));
    if (scales.empty()) return x;
    return hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<typename E::Tag>>(scales[k])));
  }
};

/// a + b = sum + rest, exactly (Knuth's TwoSum).
template <class V>
void add_exactly(V a, V b, V& sum, V& rest) {
  sum = hn::Add(a, b);
  const V b_part = hn::Sub(sum, a);
  rest = hn::Add(hn::Sub(a, hn::Sub(sum, b_part)), hn::Sub(b, b_part));
}

/// a + b, rounded to odd: of two neighbours the one with an odd mantissa.
template <class D>
hn::Vec<D> add_to_odd(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RebindToSigned<D> di;
  auto sum = hn::Zero(d);
  auto rest = hn::Zero(d);
  add_exactly(a, b, sum, rest);
  const auto bits = hn::BitCast(di, sum);
  const auto one = hn::Set(di, 1);
  const auto is_even = hn::Eq(hn::And(bits, one), hn::Zero(di));
  // Away from zero if the rest has the sign of the sum.
  const auto same = hn::BroadcastSignBit(hn::Xor(bits, hn::BitCast(di, rest)));
  const auto step = hn::Or(same, one);  // 1 or -1.
  const auto moves = hn::And(is_even, hn::RebindMask(di, hn::Ne(rest, hn::Zero(d))));
  return hn::BitCast(d, hn::Add(bits, hn::IfThenElseZero(moves, step)));
}

/// 1.5 * 2^52 times the power of two with this biased exponent: adding it rounds a smaller number
/// to a multiple of that power, which the low bits then hold.
template <class D, class VI>
hn::Vec<D> magic(D d, VI biased) {
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::Add(biased, hn::Set(di, 52));
  return hn::BitCast(d, hn::Or(hn::ShiftLeft<52>(exponent), hn::Set(di, std::int64_t{1} << 51)));
}

/// integers * 2^(biased - 1023), exact for |integers| < 2^51.
template <class D, class VI>
hn::Vec<D> scaled_integers(D d, VI integers, VI biased) {
  const hn::RebindToSigned<D> di;
  const auto m = magic(d, biased);
  return hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(di, m), integers)), m);
}

/// The sum of up to 15 integers of a double's magic addition fits in its mantissa.
constexpr std::size_t few = 15;

// ---- Addends of f32 -----------------------------------------------------------------------------

/// Half a vector of sums of f32 addends, in f64: rounded to odd, or exact.
template <class E>
class HalfSums {
 public:
  using D = typename E::Tag;
  using DH = hn::Half<D>;
  using DD = hn::Rebind<double, DH>;

  static auto widened(hn::Vec<D> x, bool upper) {
    return hn::PromoteTo(DD(), upper ? hn::UpperHalf(DH(), x) : hn::LowerHalf(DH(), x));
  }

  /// For addends that are multiples of the unit: f64 holds every partial sum.
  static auto exact(const Terms& terms, bool upper) {
    auto sum = hn::Zero(DD());
    for (std::size_t k = 0; k < terms.inputs.size(); ++k)
      sum = hn::Add(sum, widened(terms.load<E>(D(), k), upper));
    return sum;
  }

  /// `top`: the bits of the largest magnitude.
  template <class VI>
  static auto binned(const Terms& terms, VI top, bool upper) {
    const DD dd;
    const hn::RebindToSigned<DD> di;
    const hn::RebindToSigned<DH> dh;
    const auto half = upper ? hn::UpperHalf(dh, top) : hn::LowerHalf(dh, top);
    const auto first = hn::And(hn::ShiftRight<23>(half), hn::Set(dh, 0xf0));  // 16 k.
    const auto biased = hn::PromoteTo(di, hn::Add(first, hn::Set(dh, 1023 - 126 - 32)));
    const auto m = magic(dd, biased);
    auto sum = hn::Zero(di);
    for (std::size_t k = 0; k < terms.inputs.size(); ++k) {
      const auto x = hn::Add(widened(terms.load<E>(D(), k), upper), m);
      sum = hn::Add(sum, hn::Sub(hn::BitCast(di, x), hn::BitCast(di, m)));
    }
    if (terms.inputs.size() <= few) return scaled_integers(dd, sum, biased);
    const auto thirty_two = hn::Set(di, 32);
    const auto lower = hn::And(sum, hn::Set(di, 0xffffffff));
    return add_to_odd(dd, scaled_integers(dd, hn::ShiftRight<32>(sum), hn::Add(biased, thirty_two)),
                      scaled_integers(dd, lower, biased));
  }
};

/// Numbers of f64 in f32, rounded to odd, for one more rounding to fewer bits. Exact below the
/// normal numbers of f32, where all sums are multiples of its least one.
template <class DD>
auto narrowed_to_odd(DD dd, hn::Vec<DD> x) {
  const hn::RebindToUnsigned<DD> du;
  constexpr std::uint64_t dropped = (std::uint64_t{1} << 29) - 1;
  const auto bits = hn::BitCast(du, x);
  const auto rest = hn::And(bits, hn::Set(du, dropped));
  const auto odd = hn::And(hn::Add(rest, hn::Set(du, dropped)), hn::Set(du, dropped + 1));
  return hn::BitCast(dd, hn::Or(hn::Sub(bits, rest), odd));
}

/// Elements that f64 adds exactly whatever the bin.
template <class E>
inline constexpr bool is_small = sizeof(typename E::Stored) == 1 || std::is_same_v<E, Half>;
template <class E>
inline constexpr bool is_float = std::is_same_v<E, Plain<float>>;

/// Writes one vector to `to`.
template <class E>
void sum_floats(std::byte* to, const Terms& terms) {
  using D = typename E::Tag;
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Half<D> dh;
  const hn::Rebind<double, hn::Half<D>> dd;
  constexpr std::int32_t infinity = 0x7f800000;
  auto top = hn::Zero(di);
  auto least = hn::Set(di, infinity);  // The smallest addend but zero.
  for (std::size_t k = 0; k < terms.inputs.size(); ++k) {
    const auto x = hn::And(hn::BitCast(di, terms.load<E>(d, k)), hn::Set(di, 0x7fffffff));
    top = hn::Max(top, x);
    least = hn::Min(least, hn::IfThenElse(hn::Eq(x, hn::Zero(di)), least, x));
  }
  const auto special = hn::Gt(top, hn::Set(di, infinity - 1));
  // An addend is a multiple of the unit if E >= 16 k - 8.
  const auto limit = hn::Sub(hn::And(top, hn::Set(di, 0x78000000)), hn::Set(di, 8 << 23));
  auto inexact = hn::AndNot(special, hn::Lt(least, limit));
  if constexpr (is_small<E>)
    if (terms.scales.empty()) inexact = hn::FirstN(di, 0);

  const bool none = hn::AllFalse(di, inexact);
  auto lower = hn::Zero(dd);
  auto upper = hn::Zero(dd);
  if (none || !hn::AllFalse(di, special)) {
    lower = HalfSums<E>::exact(terms, false);
    upper = HalfSums<E>::exact(terms, true);
  }
  const bool to_odd = !is_float<E> && !terms.average;
  const auto narrowed = [&](auto low, auto high) {
    if (to_odd) {
      low = narrowed_to_odd(dd, low);
      high = narrowed_to_odd(dd, high);
    }
    return hn::Combine(d, hn::DemoteTo(dh, high), hn::DemoteTo(dh, low));
  };
  auto sum = narrowed(lower, upper);
  if (!none) {
    const auto binned =
        narrowed(HalfSums<E>::binned(terms, top, false), HalfSums<E>::binned(terms, top, true));
    sum = hn::IfThenElse(hn::RebindMask(d, special), sum, binned);
  }
  sum = hn::IfThenElse(hn::IsNaN(sum), hn::BitCast(d, hn::Set(di, 0x7fc00000)), sum);
  if (terms.average) sum = hn::Div(sum, hn::Set(d, static_cast<float>(terms.inputs.size())));
  E::store(d, sum, to);
}

// ---- Addends of f64 -----------------------------------------------------------------------------

void sum_doubles(std::byte* to, const Terms& terms) {
  using E = Plain<double>;
  const E::Tag d;
  const hn::RebindToSigned<E::Tag> di;
  constexpr std::int64_t infinity = std::int64_t{0x7ff} << 52;
  auto top = hn::Zero(di);
  const auto magnitudes = hn::Set(di, ~(std::int64_t{1} << 63));
  for (std::size_t k = 0; k < terms.inputs.size(); ++k)
    top = hn::Max(top, hn::And(hn::BitCast(di, terms.load<E>(d, k)), magnitudes));
  const auto special = hn::Gt(top, hn::Set(di, infinity - 1));

  // Addends are scaled by 2^-512 or 2^512, so that all powers of two below are normal numbers.
  const auto first = hn::And(hn::ShiftRight<52>(top), hn::Set(di, 0x7e0));  // 32 k.
  const auto is_large = hn::Gt(first, hn::Set(di, 1023));
  const auto by = hn::IfThenElse(is_large, hn::Set(di, -512), hn::Set(di, 512));
  const auto one = hn::Set(di, 1023);
  const auto scale = hn::BitCast(d, hn::ShiftLeft<52>(hn::Add(one, by)));
  const auto unscale = hn::BitCast(d, hn::ShiftLeft<52>(hn::Sub(one, by)));
  // The unit of the slices is 2^(32 j - 1022), for the bins j = k, k - 1, k - 2.
  const auto unit0 = hn::Add(hn::Add(first, by), hn::Set(di, 1));
  const auto unit1 = hn::Sub(unit0, hn::Set(di, 32));
  const auto unit2 = hn::Sub(unit0, hn::Set(di, 64));
  const auto m0 = magic(d, unit0);
  const auto m1 = magic(d, unit1);
  const auto m2 = magic(d, unit2);
  auto n0 = hn::Zero(di);
  auto n1 = hn::Zero(di);
  auto n2 = hn::Zero(di);
  auto plain = hn::Zero(d);
  const auto add = [&](auto& n, auto x, auto m) {
    n = hn::Add(n, hn::Sub(hn::BitCast(di, x), hn::BitCast(di, m)));
  };
  for (std::size_t k = 0; k < terms.inputs.size(); ++k) {
    const auto stored = terms.load<E>(d, k);
    plain = hn::Add(plain, stored);
    const auto x = hn::Mul(stored, scale);
    const auto x0 = hn::Add(x, m0);
    const auto rest0 = hn::Sub(x, hn::Sub(x0, m0));
    const auto x1 = hn::Add(rest0, m1);
    const auto rest1 = hn::Sub(rest0, hn::Sub(x1, m1));
    add(n0, x0, m0);
    add(n1, x1, m1);
    add(n2, hn::Add(rest1, m2), m2);
  }
  // The exact sum of three numbers, rounded once (Boldo and Melquiond, "Emulation of FMA and
  // correctly rounded sums: proved algorithms using rounding to odd", 2008).
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  auto c = hn::Zero(d);
  auto e = hn::Zero(d);
  add_exactly(scaled_integers(d, n1, unit1), scaled_integers(d, n2, unit2), a, b);
  add_exactly(scaled_integers(d, n0, unit0), a, c, e);
  const auto sum = hn::Mul(hn::Add(c, add_to_odd(d, e, b)), unscale);
  auto result = hn::IfThenElse(hn::RebindMask(d, special), plain, sum);
  const auto nan = hn::BitCast(d, hn::Set(di, std::int64_t{0x7ff8} << 48));
  result = hn::IfThenElse(hn::IsNaN(result), nan, result);
  if (terms.average) result = hn::Div(result, hn::Set(d, static_cast<double>(terms.inputs.size())));
  E::store(d, result, to);
}

// ---- Arrays -------------------------------------------------------------------------------------

template <class E>
void sum_vector(std::byte* to, const Terms& terms) {
  if constexpr (std::is_same_v<E, Plain<double>>)
    sum_doubles(to, terms);
  else
    sum_floats<E>(to, terms);
}

template <class E>
void sum(void* out, Inputs inputs, Scales scales, bool average, std::size_t n) noexcept {
  constexpr std::size_t element = sizeof(typename E::Stored);
  const typename E::Tag d;
  const std::size_t lanes = hn::Lanes(d);
  Terms terms{inputs, scales, average, 0};
  // The last vector overlaps the one before it, whose inputs may be in `out`.
  HWY_ALIGN std::byte last[hn::MaxLanes(d) * element];
  terms.offset = (n - lanes) * element;
  sum_vector<E>(last, terms);
  for (terms.offset = 0; terms.offset + lanes * element <= n * element;
       terms.offset += lanes * element)
    sum_vector<E>(at(out, terms.offset), terms);
  const std::size_t rest = n % lanes * element;
  std::memcpy(at(out, terms.offset), last + lanes * element - rest, rest);
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
