#include "kernels/reduce_simd.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/kernel_target.hpp"

// This file is compiled once per instruction set: Highway includes it again for each. SSSE3 is left
// out, because processors that stop at SSSE3 are older than 2011; they use the scalar kernels.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/elements_simd.inc"

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

// The scalar kernels are faster than vectors of one lane and than emulated vectors.
const Kernels* table() {
  static constexpr Kernels none{.target = HWY_TARGET};
  return &none;
}

#else

namespace {

using Kind = ReduceOp::Kind;

/// Chooses between floats: NaN if a or b is NaN, `equal` if a and b are equal, else a if `before`
/// is set, else b.
template <class V, class M>
V choose(V a, V b, M before, V equal) {
  // Equal numbers have equal bits, except zeros, whose signs may differ.
  const V chosen = hn::IfThenElse(hn::Eq(a, b), equal, hn::IfThenElse(before, a, b));
  return hn::IfThenElse(hn::IsNaN(a), a, chosen);
}

template <Kind kind, class V>
V apply(V a, V b) {
  constexpr bool floats = hwy::IsFloat<hn::TFromV<V>>();
  if constexpr (kind == Kind::sum) {
    return hn::Add(a, b);
  } else if constexpr (kind == Kind::prod) {
    return hn::Mul(a, b);
  } else if constexpr (kind == Kind::band) {
    return hn::And(a, b);
  } else if constexpr (kind == Kind::bor) {
    return hn::Or(a, b);
  } else if constexpr (kind == Kind::bxor) {
    return hn::Xor(a, b);
  } else if constexpr (kind == Kind::min && floats) {
    return choose(a, b, hn::Lt(a, b), hn::Or(a, b));
  } else if constexpr (kind == Kind::min) {
    return hn::Min(a, b);
  } else if constexpr (floats) {
    return choose(a, b, hn::Gt(a, b), hn::And(a, b));
  } else {
    return hn::Max(a, b);
  }
}

/// The arithmetic around the operation: scaling of inputs, division of the result.
enum class Form { plain, scaled, averaged };

/// Returns a vector of input k, scaled if the form says so.
template <class E, Form form>
auto term(typename E::Tag d, const std::byte* from, Scales scales, std::size_t k) {
  if constexpr (form == Form::scaled) {
    const auto scale = static_cast<hn::TFromD<typename E::Tag>>(scales[k]);
    return hn::Mul(E::load(d, from), hn::Set(d, scale));
  } else {
    return E::load(d, from);
  }
}

template <Form form, class D>
auto finish(D d, hn::Vec<D> sum, Inputs inputs) {
  if constexpr (form == Form::averaged) {
    return hn::Div(sum, hn::Set(d, static_cast<hn::TFromD<D>>(inputs.size())));
  } else {
    return sum;
  }
}

/// Folds fewer elements than a vector holds, from element i on, through copies of full length.
template <class E, Kind kind, Form form>
HWY_NOINLINE void fold_rest(void* out, Inputs inputs, Scales scales, std::size_t i, std::size_t n) {
  using Stored = typename E::Stored;
  const typename E::Tag d;
  HWY_ALIGN std::byte copy[hn::MaxLanes(d) * sizeof(Stored)] = {};
  std::memcpy(copy, at(inputs[0], i * sizeof(Stored)), n * sizeof(Stored));
  auto acc = term<E, form>(d, copy, scales, 0);
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    std::memcpy(copy, at(inputs[k], i * sizeof(Stored)), n * sizeof(Stored));
    acc = apply<kind>(acc, term<E, form>(d, copy, scales, k));
  }
  E::store(d, finish<form>(d, acc, inputs), copy);
  std::memcpy(at(out, i * sizeof(Stored)), copy, n * sizeof(Stored));
}

// Hardware prefetchers follow about this many arrays at a time. More arrays are folded in several
// passes over a block; the accumulators of a block stay in the first-level cache.
constexpr std::size_t arrays_per_pass = 16;

/// Folds inputs [first, first + arrays_per_pass) over `n` elements from element i on; `n` is a
/// multiple of the vector length. `acc` carries the results between passes. Each vector is read
/// from all inputs before it is written to out, because out may be one of them.
template <class E, Kind kind, Form form>
void fold_pass(void* out, hn::TFromD<typename E::Tag>* acc, Inputs inputs, Scales scales,
               std::size_t first, std::size_t i, std::size_t n) {
  const typename E::Tag d;
  const std::size_t last = HWY_MIN(first + arrays_per_pass, inputs.size());
  for (std::size_t j = 0; j < n; j += hn::Lanes(d)) {
    const std::size_t offset = (i + j) * sizeof(typename E::Stored);
    std::size_t k = first;
    auto v = hn::Zero(d);
    if (first == 0) {
      v = term<E, form>(d, at(inputs[0], offset), scales, 0);
      ++k;
    } else {
      v = hn::Load(d, acc + j);
    }
    for (; k < last; ++k) v = apply<kind>(v, term<E, form>(d, at(inputs[k], offset), scales, k));
    if (last == inputs.size()) {
      E::store(d, finish<form>(d, v, inputs), at(out, offset));
    } else {
      hn::Store(v, d, acc + j);
    }
  }
}

template <class E, Kind kind, Form form>
void fold(void* out, Inputs inputs, Scales scales, std::size_t n) noexcept {
  const typename E::Tag d;
  using Lane = hn::TFromD<typename E::Tag>;
  // One page of each array.
  constexpr std::size_t block = HWY_MAX(4096 / sizeof(typename E::Stored), hn::MaxLanes(d));
  HWY_ALIGN Lane acc[block];
  std::size_t i = 0;
  while (n - i >= hn::Lanes(d)) {
    const std::size_t size = HWY_MIN(block, n - i) / hn::Lanes(d) * hn::Lanes(d);
    for (std::size_t first = 0; first < inputs.size(); first += arrays_per_pass)
      fold_pass<E, kind, form>(out, acc, inputs, scales, first, i, size);
    i += size;
  }
  if (i < n) fold_rest<E, kind, form>(out, inputs, scales, i, n - i);
}

template <class E, Kind kind>
void reduce(void* out, const void* a, const void* b, std::size_t n) {
  const typename E::Tag d;
  std::size_t i = 0;
  for (; n - i >= hn::Lanes(d); i += hn::Lanes(d)) {
    const std::size_t offset = i * sizeof(typename E::Stored);
    E::store(d, apply<kind>(E::load(d, at(a, offset)), E::load(d, at(b, offset))), at(out, offset));
  }
  const void* const inputs[] = {a, b};
  if (i < n) fold_rest<E, kind, Form::plain>(out, inputs, {}, i, n - i);
}

/// Adds the kernels of `kind` to the table as those of `as`, because booleans share the kernels of
/// equivalent kinds.
template <class E, Kind kind>
constexpr void add(Kernels& kernels, DType dtype, Kind as = kind) {
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(as);
  kernels.reduce[row][column] = &reduce<E, kind>;
  kernels.fold[row][column] = &fold<E, kind, Form::plain>;
}

template <class E>
constexpr void add_float(Kernels& kernels, DType dtype) {
  add<E, Kind::sum>(kernels, dtype);
  add<E, Kind::prod>(kernels, dtype);
  add<E, Kind::min>(kernels, dtype);
  add<E, Kind::max>(kernels, dtype);
  auto& folds = kernels.fold[static_cast<std::size_t>(dtype)];
  folds[static_cast<std::size_t>(Kind::avg)] = &fold<E, Kind::sum, Form::averaged>;
  folds[static_cast<std::size_t>(Kind::premul_sum)] = &fold<E, Kind::sum, Form::scaled>;
}

// Complex numbers are computed as two elements each.

template <class E>
void sum_of_pairs(void* out, const void* a, const void* b, std::size_t n) {
  reduce<E, Kind::sum>(out, a, b, 2 * n);
}

template <class E, Form form>
void fold_pairs(void* out, Inputs inputs, Scales scales, std::size_t n) noexcept {
  fold<E, Kind::sum, form>(out, inputs, scales, 2 * n);
}

template <class E>
constexpr void add_complex(Kernels& kernels, DType dtype) {
  const auto row = static_cast<std::size_t>(dtype);
  kernels.reduce[row][static_cast<std::size_t>(Kind::sum)] = &sum_of_pairs<E>;
  auto& folds = kernels.fold[row];
  folds[static_cast<std::size_t>(Kind::sum)] = &fold_pairs<E, Form::plain>;
  folds[static_cast<std::size_t>(Kind::avg)] = &fold_pairs<E, Form::averaged>;
  folds[static_cast<std::size_t>(Kind::premul_sum)] = &fold_pairs<E, Form::scaled>;
}

// Adds a product only for 16-bit and 32-bit integers: few targets multiply vectors of other widths.
template <typename T>
constexpr void add_integer(Kernels& kernels, DType dtype) {
  using Bits = Plain<std::make_unsigned_t<T>>;
  add<Bits, Kind::sum>(kernels, dtype);
  if constexpr (sizeof(T) == 2 || sizeof(T) == 4) add<Bits, Kind::prod>(kernels, dtype);
  add<Plain<T>, Kind::min>(kernels, dtype);
  add<Plain<T>, Kind::max>(kernels, dtype);
  add<Bits, Kind::band>(kernels, dtype);
  add<Bits, Kind::bor>(kernels, dtype);
  add<Bits, Kind::bxor>(kernels, dtype);
}

std::size_t widen_halves(void* out, const void* in, std::size_t n) noexcept {
  const Half::Tag d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    hn::StoreU(Half::load(d, at(in, 2 * i)), d, reinterpret_cast<float*>(at(out, 4 * i)));
  return i;
}

std::size_t narrow_halves(void* out, const void* in, std::size_t n) noexcept {
  const Half::Tag d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    Half::store(d, hn::LoadU(d, reinterpret_cast<const float*>(at(in, 4 * i))), at(out, 2 * i));
  return i;
}

constexpr Kernels make_table() {
  Kernels kernels;
  kernels.target = HWY_TARGET;
  kernels.widen_halves = &widen_halves;
  kernels.narrow_halves = &narrow_halves;
  add_integer<std::uint8_t>(kernels, DType::u8);
  add_integer<std::int8_t>(kernels, DType::i8);
  add_integer<std::int16_t>(kernels, DType::i16);
  add_integer<std::uint16_t>(kernels, DType::u16);
  add_integer<std::int32_t>(kernels, DType::i32);
  add_integer<std::uint32_t>(kernels, DType::u32);
  add_integer<std::int64_t>(kernels, DType::i64);
  add_integer<std::uint64_t>(kernels, DType::u64);
  for (const Kind kind : {Kind::band, Kind::min, Kind::prod})
    add<Bool, Kind::band>(kernels, DType::boolean, kind);
  for (const Kind kind : {Kind::bor, Kind::max, Kind::sum})
    add<Bool, Kind::bor>(kernels, DType::boolean, kind);
  add<Bool, Kind::bxor>(kernels, DType::boolean);
  add_float<Plain<float>>(kernels, DType::f32);
  add_float<Plain<double>>(kernels, DType::f64);
  add_complex<Plain<float>>(kernels, DType::complex64);
  add_complex<Plain<double>>(kernels, DType::complex128);
  add_float<Half>(kernels, DType::f16);
  add_float<Brain>(kernels, DType::bf16);
  add_float<Small<Float8E4M3, 4, 3, false>>(kernels, DType::f8e4m3);
  add_float<Small<Float8E5M2, 5, 2, true>>(kernels, DType::f8e5m2);
  return kernels;
}

}  // namespace

const Kernels* table() {
  static constexpr Kernels kernels = make_table();
  return &kernels;
}

#endif

}  // namespace tutti::internal::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::internal {
namespace simd {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace simd

namespace {

const char* name_of(std::int64_t target) noexcept {
  return (target & (HWY_SCALAR | HWY_EMU128)) != 0 ? "scalar" : hwy::TargetName(target);
}

}  // namespace

const char* kernel_target() noexcept {
  return name_of(simd::kernels().target);
}

std::vector<std::string_view> kernel_targets() {
  std::vector<std::string_view> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets())
    names.emplace_back(name_of(target));
  return names;
}

void choose_kernel_target(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets())
    if (name == name_of(target)) hwy::SetSupportedTargetsForTest(target);
}

}  // namespace tutti::internal
#endif
