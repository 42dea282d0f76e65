#include "losses/features/feature_kernels.hpp"

#include <cmath>

// This file is compiled once per instruction set: Highway includes it again for each. Targets are
// left out as in soft_rank_kernels_simd.cpp, and those whose vectors may have any length.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "losses/features/feature_kernels_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// Must come after the other includes, because it is compiled per target too.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::losses::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

template <typename T>
const FeatureKernels<T>* feature_table() {
  return nullptr;
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::ScalableTag<double>;
template <typename T>
using Values = hn::ScalableTag<T>;
template <typename T>
using Vector = hn::Vec<Values<T>>;

/// Sums of vectors of T in double.
HWY_INLINE hn::Vec<Doubles> add_wide(hn::Vec<Doubles> sum, Vector<double> v) {
  return hn::Add(sum, v);
}
HWY_INLINE hn::Vec<Doubles> add_wide(hn::Vec<Doubles> sum, Vector<float> v) {
  const Doubles d;
  const hn::Half<Values<float>> half;
  return hn::Add(sum, hn::Add(hn::PromoteTo(d, hn::LowerHalf(half, v)),
                              hn::PromoteTo(d, hn::UpperHalf(half, v))));
}
/// (1 + product)(1 + e) - 1, without the rounding of 1 + e.
HWY_INLINE hn::Vec<Doubles> multiply_wide(hn::Vec<Doubles> product, Vector<double> e) {
  return hn::MulAdd(product, e, hn::Add(product, e));
}
HWY_INLINE hn::Vec<Doubles> multiply_wide(hn::Vec<Doubles> product, Vector<float> e) {
  const Doubles d;
  const hn::Half<Values<float>> half;
  product = multiply_wide(product, hn::PromoteTo(d, hn::LowerHalf(half, e)));
  return multiply_wide(product, hn::PromoteTo(d, hn::UpperHalf(half, e)));
}

template <typename T>
void log_sum_of(const Block<T>& block, double scale, LogSum* sums) {
  const Values<T> d;
  const auto lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, static_cast<T>(scale));
  for (std::size_t i = 0; i < block.rows; ++i) {
    const T* k = block.k + i * block.stride;
    auto large = hn::Load(d, k);
    auto larger = hn::Load(d, k + lanes);
    for (std::size_t j = 2 * lanes; j < block.columns; j += 2 * lanes) {
      large = hn::Max(large, hn::Load(d, k + j));
      larger = hn::Max(larger, hn::Load(d, k + j + lanes));
    }
    const T most = hn::GetLane(hn::MaxOfLanes(d, hn::Max(large, larger)));
    if (most == no_pair<T>) continue;
    if (most > sums[i].most) {
      sums[i].sum *= std::exp(scale * (sums[i].most - static_cast<double>(most)));
      sums[i].most = most;
    }
    const auto center = hn::Set(d, static_cast<T>(sums[i].most));
    const auto exp_at = [&](std::size_t j) HWY_ATTR {
      return hn::Exp(d, hn::Mul(factor, hn::Sub(hn::Load(d, k + j), center)));
    };
    auto sum = hn::Zero(Doubles());
    for (std::size_t j = 0; j < block.columns; j += 4 * lanes)
      sum = add_wide(sum, hn::Add(hn::Add(exp_at(j), exp_at(j + lanes)),
                                  hn::Add(exp_at(j + 2 * lanes), exp_at(j + 3 * lanes))));
    sums[i].sum += hn::GetLane(hn::SumOfLanes(Doubles(), sum));
  }
}

template <typename T>
void softmax_of(const Block<T>& block, const SoftmaxTerms<T>& terms) {
  const Values<T> d;
  const auto lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, terms.scale);
  const auto floor = hn::Set(d, terms.floor);
  const auto zero = hn::Zero(d);
  for (std::size_t i = 0; i < block.rows; ++i) {
    T* k = block.k + i * block.stride;
    const auto center = hn::Set(d, terms.row_center[i]);
    const auto weight = hn::Set(d, terms.row_weight[i]);
    const auto softmax_at = [&](std::size_t j, Vector<T> log_sum) HWY_ATTR {
      return hn::Exp(d, hn::Min(zero, hn::Mul(scale, hn::Sub(hn::Load(d, k + j), log_sum))));
    };
    const auto own_at = [&](std::size_t j) HWY_ATTR { return softmax_at(j, center); };
    if (terms.row_factor != nullptr) {
      const auto factor = hn::Set(d, terms.row_factor[i]);
      for (std::size_t j = 0; j < block.columns; j += lanes) {
        const auto own = own_at(j);
        const auto column_weight = hn::Load(d, terms.column_weight + j);
        const auto other = hn::Mul(own, hn::Mul(factor, hn::Load(d, terms.column_factor + j)));
        const auto both = hn::MulAdd(weight, own, hn::Min(column_weight, other));
        hn::Store(hn::NegMulAdd(hn::Add(weight, column_weight), floor, both), d, k + j);
      }
    } else {
      for (std::size_t j = 0; j < block.columns; j += lanes) {
        const auto column_weight = hn::Load(d, terms.column_weight + j);
        const auto other = softmax_at(j, hn::Load(d, terms.column_center + j));
        const auto both = hn::MulAdd(column_weight, other, hn::Mul(weight, own_at(j)));
        hn::Store(hn::NegMulAdd(hn::Add(weight, column_weight), floor, both), d, k + j);
      }
    }
  }
}

template <typename T>
void logistic_of(const Block<T>& block, const LogisticTerms<T>& terms) {
  const Values<T> d;
  const Doubles wide;
  const auto lanes = hn::Lanes(d);
  const auto one = hn::Set(d, T{1});
  const auto zero = hn::Zero(d);
  const auto scale = hn::Set(d, terms.scale);
  const auto bias = hn::Set(d, terms.bias);
  for (std::size_t i = 0; i < block.rows; ++i) {
    T* k = block.k + i * block.stride;
    const auto row_weight = hn::Set(d, terms.row_weight[i]);
    auto linear = hn::Zero(wide);
    auto product = hn::Zero(wide);
    auto slopes = hn::Zero(wide);
    for (std::size_t j = 0; j < block.columns; j += lanes) {
      const auto z = hn::MulAdd(scale, hn::Load(d, k + j), bias);
      const auto e = hn::Exp(d, hn::Neg(hn::Abs(z)));
      const auto large = hn::Div(one, hn::Add(one, e));
      linear = add_wide(linear, hn::Max(z, zero));
      product = multiply_wide(product, e);
      const auto weight = hn::Add(row_weight, hn::Load(d, terms.column_weight + j));
      const auto slope = hn::Mul(weight, hn::IfThenElse(hn::Gt(z, zero), large, hn::Mul(e, large)));
      slopes = add_wide(slopes, slope);
      hn::Store(slope, d, k + j);
    }
    HWY_ALIGN double of_lanes[hn::MaxLanes(wide)];
    hn::Store(product, wide, of_lanes);
    double all = 0;
    for (std::size_t lane = 0; lane < hn::Lanes(wide); ++lane)
      all += of_lanes[lane] + all * of_lanes[lane];
    terms.softplus[i] += hn::GetLane(hn::SumOfLanes(wide, linear)) + std::log1p(all);
    terms.slopes[i] += hn::GetLane(hn::SumOfLanes(wide, slopes));
  }
}

void add_to(double* sums, const double* more, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] += more[i];
}
void add_to(double* sums, const float* more, std::size_t count) {
  const Doubles d;
  const hn::Rebind<float, Doubles> narrow;
  const auto lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::PromoteTo(d, hn::LoadU(narrow, more + i))), d,
               sums + i);
  for (; i < count; ++i) sums[i] += static_cast<double>(more[i]);
}

}  // namespace

template <typename T>
const FeatureKernels<T>* feature_table() {
  static_assert(block_lanes >= 4 * hn::MaxLanes(Values<T>()));
  static constexpr FeatureKernels<T> kernels{log_sum_of<T>, softmax_of<T>, logistic_of<T>, add_to};
  return &kernels;
}

#endif

const FeatureKernels<float>* float_table() {
  return feature_table<float>();
}
const FeatureKernels<double>* double_table() {
  return feature_table<double>();
}

}  // namespace tutti::internal::losses::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::internal::losses {

HWY_EXPORT(float_table);
HWY_EXPORT(double_table);

const FeatureKernels<float>* simd_feature_kernels(float) noexcept {
  return HWY_DYNAMIC_DISPATCH(float_table)();
}
const FeatureKernels<double>* simd_feature_kernels(double) noexcept {
  return HWY_DYNAMIC_DISPATCH(double_table)();
}

}  // namespace tutti::internal::losses
#endif
