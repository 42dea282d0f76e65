#include "losses/soft_rank_kernels.hpp"

// This file is compiled once per instruction set: Highway includes it again for each. SSSE3 is left
// out: without a fast double division or fused multiply-add, vectors gain little over the scalar
// kernels. SVE is left out, because its vectors cannot be elements of an array; NEON is used.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "losses/soft_rank_kernels_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// Must come after the other includes, because it is compiled per target too.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::losses::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

const SoftRankKernels* table() {
  return nullptr;
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<double>;
using V = hn::Vec<Tag>;
using Narrow = hn::CappedTag<double, terms>;

/// Calls body(vector of x, number of valid lanes, index) for all of x. In the last vector, lanes
/// that are not valid hold `filler`.
template <typename Body>
HWY_INLINE void for_vectors(const double* x, std::size_t count, double filler, const Body& body) {
  const Tag d;
  const auto lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(hn::LoadU(d, x + i), lanes, i);
  if (i == count) return;
  HWY_ALIGN double rest[hn::MaxLanes(d)];
  for (std::size_t j = 0; j < lanes; ++j) rest[j] = i + j < count ? x[i + j] : filler;
  body(hn::Load(d, rest), count - i, i);
}

/// Returns the weights of a vector of x; lanes that are not valid get 0.
HWY_INLINE V weights_at(const double* weights, std::size_t i, std::size_t n) {
  const Tag d;
  const auto lanes = hn::Lanes(d);
  if (n == lanes && weights != nullptr) return hn::LoadU(d, weights + i);
  const auto mask = hn::FirstN(d, n);
  if (weights == nullptr) return hn::IfThenElseZero(mask, hn::Set(d, 1.0));
  HWY_ALIGN double rest[hn::MaxLanes(d)];
  for (std::size_t j = 0; j < lanes; ++j) rest[j] = j < n ? weights[i + j] : 0.0;
  return hn::Load(d, rest);
}

void moments(const double* x, const double* weights, std::size_t count, double* out) {
  const Tag d;
  V sums[terms];
  for (auto& sum : sums) sum = hn::Zero(d);
  for_vectors(x, count, 0.0, [&](V at, std::size_t n, std::size_t i) HWY_ATTR {
    const auto twice = hn::Add(at, at);
    auto before = weights_at(weights, i, n);
    auto now = hn::Mul(before, at);
    sums[0] = hn::Add(sums[0], before);
    for (std::size_t k = 1; k < terms; ++k) {
      sums[k] = hn::Add(sums[k], now);
      const auto next = hn::MulSub(twice, now, before);
      before = now;
      now = next;
    }
  });
  for (std::size_t k = 0; k < terms; ++k) out[k] += hn::GetLane(hn::SumOfLanes(d, sums[k]));
}

void translate(const double* matrix, const double* in, double* out) {
  const Narrow d;
  const auto lanes = hn::Lanes(d);
  for (std::size_t m = 0; m < terms; m += lanes) {
    auto even =
        hn::LoadU(d, out + m);  // Two chains, because each sum depends on the one before it.
    auto odd = hn::Zero(d);
    for (std::size_t n = 0; n < terms; n += 2) {
      even = hn::MulAdd(hn::LoadU(d, matrix + n * terms + m), hn::Set(d, in[n]), even);
      odd = hn::MulAdd(hn::LoadU(d, matrix + (n + 1) * terms + m), hn::Set(d, in[n + 1]), odd);
    }
    hn::StoreU(hn::Add(even, odd), d, out + m);
  }
}

void evaluate(const double* x, std::size_t count, const double* series, std::size_t size,
              double* out) {
  const Tag d;
  for_vectors(x, count, 0.0, [&](V at, std::size_t n, std::size_t i) HWY_ATTR {
    const auto twice = hn::Add(at, at);
    auto b1 = hn::Zero(d);
    auto b2 = hn::Zero(d);
    for (std::size_t k = size - 1; k > 0; --k) {
      const auto b0 = hn::MulAdd(twice, b1, hn::Sub(hn::Set(d, series[k]), b2));
      b2 = b1;
      b1 = b0;
    }
    const auto value = hn::MulAdd(at, b1, hn::Sub(hn::Set(d, series[0]), b2));
    if (n == hn::Lanes(d)) {
      hn::StoreU(value, d, out + i);
    } else {
      HWY_ALIGN double rest[hn::MaxLanes(d)];
      hn::Store(value, d, rest);
      for (std::size_t j = 0; j < n; ++j) out[i + j] = rest[j];
    }
  });
}

void pairs(const double* s, std::size_t count, double at, double scale, double* sums) {
  const Tag d;
  const auto one = hn::Set(d, 1.0);
  auto value = hn::Zero(d);
  auto slope = hn::Zero(d);
  for_vectors(s, count, at, [&](V score, std::size_t n, std::size_t) HWY_ATTR {
    const auto x = hn::Mul(hn::Sub(score, hn::Set(d, at)), hn::Set(d, scale));
    const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
    const auto large = hn::Div(one, hn::Add(one, e));
    const auto small = hn::Mul(e, large);
    const auto mask = hn::FirstN(d, n);
    value = hn::Add(value,
                    hn::IfThenElseZero(mask, hn::IfThenElse(hn::Gt(x, hn::Zero(d)), large, small)));
    slope = hn::Add(slope, hn::IfThenElseZero(mask, hn::Mul(large, small)));
  });
  sums[0] += hn::GetLane(hn::SumOfLanes(d, value));
  sums[1] += hn::GetLane(hn::SumOfLanes(d, slope));
}

void slopes(const double* s, const double* a, const double* b, std::size_t count, double at,
            double scale, double* sums) {
  const Tag d;
  const auto one = hn::Set(d, 1.0);
  auto by_a = hn::Zero(d);
  auto by_b = hn::Zero(d);
  for_vectors(s, count, at, [&](V score, std::size_t n, std::size_t i) HWY_ATTR {
    const auto x = hn::Mul(hn::Sub(score, hn::Set(d, at)), hn::Set(d, scale));
    const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
    const auto large = hn::Div(one, hn::Add(one, e));
    const auto slope = hn::Mul(hn::Mul(large, large), e);
    by_a = hn::MulAdd(weights_at(a, i, n), slope, by_a);
    if (b != nullptr) by_b = hn::MulAdd(weights_at(b, i, n), slope, by_b);
  });
  sums[0] += hn::GetLane(hn::SumOfLanes(d, by_a));
  sums[1] += hn::GetLane(hn::SumOfLanes(d, by_b));
}

}  // namespace

const SoftRankKernels* table() {
  static constexpr SoftRankKernels kernels{moments, translate, evaluate, pairs, slopes};
  return &kernels;
}

#endif

}  // namespace tutti::internal::losses::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::internal::losses {

HWY_EXPORT(table);

const SoftRankKernels* simd_soft_rank_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace tutti::internal::losses
#endif
