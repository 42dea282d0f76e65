#include "support/reference.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "support/dtypes.hpp"
#include "support/reproducible_sum.hpp"

namespace tutti::test {

namespace {

using Kind = ReduceOp::Kind;

template <typename W>
W smaller(W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<W>::quiet_NaN();
    if (a == b) return std::signbit(a) ? a : b;  // -0 is below +0.
  }
  return b < a ? b : a;
}

template <typename W>
W larger(W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<W>::quiet_NaN();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

bool combine_booleans(Kind kind, bool a, bool b) {
  switch (kind) {
    case Kind::band:
    case Kind::min:
    case Kind::prod:
      return a && b;
    case Kind::bor:
    case Kind::max:
    case Kind::sum:
      return a || b;
    case Kind::bxor:
      return a != b;
    case Kind::avg:
    case Kind::premul_sum:
    case Kind::custom:
      break;
  }
  throw std::logic_error("booleans do not have this operation");
}

// In 64 unsigned bits, whose low bits are the wrapped result.
template <typename W>
W combine_bits(Kind kind, W a, W b) {
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (kind) {
    case Kind::sum:
    case Kind::avg:
      return static_cast<W>(x + y);
    case Kind::prod:
      return static_cast<W>(x * y);
    case Kind::band:
      return static_cast<W>(x & y);
    case Kind::bor:
      return static_cast<W>(x | y);
    case Kind::bxor:
      return static_cast<W>(x ^ y);
    default:
      throw std::logic_error("integers do not have this operation");
  }
}

template <typename W>
W combine_floats(Kind kind, W a, W b) {
  switch (kind) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
      return a + b;
    case Kind::prod:
      return a * b;
    default:
      throw std::logic_error("floats do not have this operation");
  }
}

template <typename W>
W combine(Kind kind, W a, W b) {
  if constexpr (std::is_same_v<W, bool>) {
    return combine_booleans(kind, a, b);
  } else if constexpr (is_complex_type<W>) {
    return a + b;
  } else {
    if (kind == Kind::min) return smaller(a, b);
    if (kind == Kind::max) return larger(a, b);
    if constexpr (std::is_floating_point_v<W>)
      return combine_floats(kind, a, b);
    else
      return combine_bits(kind, a, b);
  }
}

template <typename T>
T reduce_element(Kind kind, std::span<const Array> inputs, std::span<const double> scales,
                 std::int64_t i) {
  using W = Wide<T>;
  W sum{};
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    W value = W(inputs[k].get<T>(i));
    if constexpr (std::is_floating_point_v<W>) {
      if (kind == Kind::premul_sum) value = value * static_cast<W>(scales[k]);
    } else if constexpr (is_complex_type<W>) {
      if (kind == Kind::premul_sum) value = value * static_cast<typename W::value_type>(scales[k]);
    }
    sum = k == 0 ? value : combine(kind, sum, value);
  }
  if constexpr (!std::is_same_v<W, bool>)
    if (kind == Kind::avg) {
      if constexpr (is_complex_type<W>)  // Dividing by a complex number is another formula.
        sum = sum / static_cast<typename W::value_type>(inputs.size());
      else
        sum = static_cast<W>(sum / static_cast<W>(inputs.size()));
    }
  return T(sum);
}

/// `part(k)`: the addend of input k, in the accumulation type W of T.
template <typename T, typename W, typename Part>
W sum_reproducibly(Kind kind, std::size_t count, const Part& part) {
  std::vector<double> addends;
  for (std::size_t k = 0; k < count; ++k) addends.push_back(part(k));
  if (kind != Kind::avg) return static_cast<W>(reproducible_sum(dtype_of<T>, addends));
  return static_cast<W>(reproducible_sum(dtype_of<W>, addends)) / static_cast<W>(count);
}

template <typename T>
T lowest_of() {
  if constexpr (std::is_same_v<T, Float8E4M3>)
    return T(-448.0F);
  else if constexpr (is_small_float<T>)
    return T(-std::numeric_limits<float>::infinity());
  else if constexpr (is_float_type<T>)
    return -std::numeric_limits<T>::infinity();
  else
    return std::numeric_limits<T>::lowest();
}

template <typename T>
T highest_of() {
  if constexpr (std::is_same_v<T, Float8E4M3>)
    return T(448.0F);
  else if constexpr (is_small_float<T>)
    return T(std::numeric_limits<float>::infinity());
  else if constexpr (is_float_type<T>)
    return std::numeric_limits<T>::infinity();
  else
    return std::numeric_limits<T>::max();
}

template <typename T>
T identity_element(Kind kind) {
  if constexpr (is_complex_type<T>)
    return T{};
  else
    switch (kind) {
      case Kind::prod:
        return T(Wide<T>(1));
      case Kind::min:
        return highest_of<T>();
      case Kind::max:
        return lowest_of<T>();
      case Kind::band:
        if constexpr (std::is_same_v<T, bool>)
          return true;
        else if constexpr (!is_float_type<T>)
          return static_cast<T>(~T{0});
        else
          return T{};
      default:
        return T{};
    }
}

}  // namespace

bool has_meaning(DType dtype, Kind kind) {
  switch (kind) {
    case Kind::sum:
      return true;
    case Kind::prod:
    case Kind::min:
    case Kind::max:
      return !is_complex(dtype);
    case Kind::avg:
      return dtype != DType::boolean;
    case Kind::premul_sum:
      return is_float(dtype) || is_complex(dtype);
    case Kind::band:
    case Kind::bor:
    case Kind::bxor:
      return !is_float(dtype) && !is_complex(dtype);
    case Kind::custom:  // With a function; custom_reduce_test.cpp has the cases.
      return false;
  }
  return false;
}

std::vector<Kind> kinds_of(DType dtype) {
  std::vector<Kind> kinds;
  for (int k = 0; k < reduce_op_count; ++k)
    if (has_meaning(dtype, static_cast<Kind>(k))) kinds.push_back(static_cast<Kind>(k));
  return kinds;
}

Array reduce_in_order(Kind kind, std::span<const Array> inputs, std::span<const double> scales) {
  Array out(inputs[0].dtype(), inputs[0].shape());
  visit_dtype(out.dtype(), [&]<typename T>() {
    for (std::int64_t i = 0; i < out.numel(); ++i)
      out.put<T>(i, reduce_element<T>(kind, inputs, scales, i));
  });
  return out;
}

Array reduce_reproducibly(Kind kind, std::span<const Array> inputs,
                          std::span<const double> scales) {
  Array out(inputs[0].dtype(), inputs[0].shape());
  visit_dtype(out.dtype(), [&]<typename T>() {
    if constexpr (is_float_type<T> || is_complex_type<T>) {
      for (std::int64_t i = 0; i < out.shape().numel(); ++i) {
        const auto scaled = [&](std::size_t k, auto x) {
          return kind == Kind::premul_sum ? x * static_cast<decltype(x)>(scales[k]) : x;
        };
        if constexpr (is_complex_type<T>) {
          using R = typename T::value_type;
          const auto sum = [&](auto component) {
            return sum_reproducibly<R, R>(kind, inputs.size(), [&](std::size_t k) {
              return scaled(k, component(inputs[k].get<T>(i)));
            });
          };
          out.put<T>(i, T(sum([](T x) { return x.real(); }), sum([](T x) { return x.imag(); })));
        } else {
          using W = Wide<T>;
          out.put<T>(i, T(sum_reproducibly<T, W>(kind, inputs.size(), [&](std::size_t k) {
                       return scaled(k, W(inputs[k].get<T>(i)));
                     })));
        }
      }
    } else {
      throw std::logic_error("only floats have reproducible sums");
    }
  });
  return out;
}

Array identity(Kind kind, DType dtype, const Shape& shape) {
  Array out(dtype, shape);
  visit_dtype(dtype, [&]<typename T>() {
    for (std::int64_t i = 0; i < out.numel(); ++i) out.put<T>(i, identity_element<T>(kind));
  });
  return out;
}

}  // namespace tutti::test
