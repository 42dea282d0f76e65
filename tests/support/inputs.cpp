#include "support/inputs.hpp"

#include <array>

#include "support/dtypes.hpp"

namespace tutti::test {

namespace {

constexpr std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Between -2 and 2.
double fraction(std::uint64_t random) {
  return static_cast<double>(static_cast<std::int64_t>(random) >> 11) * 0x1p-51;
}

template <typename T>
T from_int(int value) {
  if constexpr (is_small_float<T>)
    return T(static_cast<float>(value));
  else if constexpr (is_complex_type<T>)  // The parts differ.
    return {static_cast<typename T::value_type>(value),
            static_cast<typename T::value_type>(-value)};
  else
    return static_cast<T>(value);
}

// Small integers whose partial results are exact in 3 significant bits, the precision of f8e5m2.
template <typename T>
T exact_value(std::uint64_t random, int rank, int size, ReduceOp::Kind kind) {
  constexpr bool is_signed = is_float_type<T> || is_complex_type<T> || std::is_signed_v<T>;
  const int small = static_cast<int>(random % 3) - (is_signed ? 1 : 0);
  switch (kind) {
    case ReduceOp::Kind::avg:  // The sum is a multiple of the size.
      return from_int<T>(rank < 2 ? small * size : 0);
    case ReduceOp::Kind::prod:
      return from_int<T>(random % 3 == 2 && is_signed ? -1 : static_cast<int>(random % 3));
    case ReduceOp::Kind::premul_sum:
      return from_int<T>(small);
    default:
      return from_int<T>(static_cast<int>(random % 5) - (is_signed ? 2 : 0));
  }
}

template <typename T>
T rough_value(std::uint64_t random, ReduceOp::Kind kind) {
  if constexpr (is_small_float<T>) {
    return T(static_cast<float>(fraction(random)));
  } else if constexpr (is_float_type<T>) {
    return static_cast<T>(fraction(random));
  } else if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    return {static_cast<Part>(fraction(random)), static_cast<Part>(fraction(scramble(random)))};
  } else {
    // The sum of an average does not wrap: the test is not about division before or after a wrap.
    if (kind == ReduceOp::Kind::avg)
      return static_cast<T>(static_cast<int>(random % 61) - (std::is_signed_v<T> ? 30 : 0));
    return static_cast<T>(random);
  }
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return scramble(scramble(scramble(a) + b) + c);
}

Array make_input(DType dtype, const Shape& shape, int rank, int size, Fill fill,
                 ReduceOp::Kind kind, std::uint64_t salt) {
  Array array(dtype, shape);
  visit_dtype(dtype, [&]<typename T>() {
    const std::uint64_t seed = mix(salt, static_cast<std::uint64_t>(rank) + 1);
    for (std::int64_t i = 0; i < array.numel(); ++i) {
      const std::uint64_t random = scramble(seed + static_cast<std::uint64_t>(i));
      if constexpr (std::is_same_v<T, bool>) {
        array.put<bool>(i, random % 2 != 0);
      } else if (fill == Fill::bits) {
        T value;
        const std::uint64_t bits[] = {random, scramble(random)};
        std::memcpy(static_cast<void*>(&value), bits, sizeof(T));
        array.put<T>(i, value);
      } else if (fill == Fill::exact) {
        array.put<T>(i, exact_value<T>(random, rank, size, kind));
      } else {
        array.put<T>(i, rough_value<T>(random, kind));
      }
    }
  });
  return array;
}

std::vector<Array> make_inputs(DType dtype, const Shape& shape, int size, Fill fill,
                               ReduceOp::Kind kind, std::uint64_t salt) {
  std::vector<Array> inputs;
  for (int rank = 0; rank < size; ++rank)
    inputs.push_back(make_input(dtype, shape, rank, size, fill, kind, salt));
  return inputs;
}

std::vector<double> make_scales(int size, Fill fill) {
  static constexpr std::array<double, 4> exact{2, -1, 1, 2};
  static constexpr std::array<double, 4> rough{0.3, -1.7, 2.25, 1.0 / 3};
  std::vector<double> scales;
  for (int rank = 0; rank < size; ++rank)
    scales.push_back((fill == Fill::rough ? rough : exact)[static_cast<std::size_t>(rank) % 4]);
  return scales;
}

ReduceOp op_of(ReduceOp::Kind kind, std::span<const double> scales, int rank) {
  if (kind == ReduceOp::Kind::premul_sum)
    return ReduceOp::premul(scales[static_cast<std::size_t>(rank)]);
  return {kind, 1};
}

}  // namespace tutti::test
