#include "bench/pattern.hpp"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace tutti::tool {
namespace {

using Kind = ReduceOp::Kind;

/// Calls f with the type of the elements. Booleans are bytes, because a broken backend may leave
/// other values than 0 and 1.
template <typename F>
decltype(auto) with_type(DType dtype, F&& f) {
  return visit_dtype(dtype == DType::boolean ? DType::u8 : dtype, std::forward<F>(f));
}

constexpr std::uint64_t largest_product = 64;
constexpr int largest_twos = 6;

/// Uniform in [0, n) for n up to 2^32, without a division.
constexpr std::uint64_t below(std::uint64_t hash, std::uint64_t n) noexcept {
  return ((hash >> 32) * n) >> 32;
}

template <typename T>
constexpr bool is_complex_type =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// The parts of a complex number are `value` and -value, because all operations on complex numbers
/// are linear.
template <typename T>
T encode(std::int64_t value) noexcept {
  if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    return {static_cast<Part>(value), static_cast<Part>(-value)};
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

constexpr std::uint64_t enough = 1U << 24;

/// The largest n such that 0, 1, ... n are all exact; a smaller n for wide types, which need no
/// more.
std::uint64_t exact_integers(DType dtype) {
  if (dtype == DType::boolean) return 1;
  return with_type(dtype, []<typename T>() -> std::uint64_t {
    if constexpr (std::is_integral_v<T>) {
      return std::min(static_cast<std::uint64_t>(std::numeric_limits<T>::max()), enough);
    } else if constexpr (is_complex_type<T>) {
      return enough;
    } else {
      // A float represents all integers up to the power of two above which it represents only even
      // ones.
      std::uint64_t n = 1;
      const auto odd_is_exact = [](std::uint64_t odd) {
        const T rounded = encode<T>(static_cast<std::int64_t>(odd));
        return static_cast<float>(rounded) == static_cast<float>(odd);
      };
      while (n < enough && odd_is_exact(n + 1)) n *= 2;
      return n;
    }
  });
}

template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::is_integral_v<T>) {
    return fmt::format(
        "{}",
        static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value));
  } else if constexpr (is_complex_type<T>) {
    return fmt::format("({}, {})", value.real(), value.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("{}", value);
  } else {
    return fmt::format("{}", static_cast<float>(value));
  }
}

/// Compares bits, so that a NaN and a zero of the wrong sign count as wrong.
template <typename T, typename F>
Mismatches compare(const void* data, std::int64_t count, F expected) {
  const T* got = static_cast<const T*>(data);
  Mismatches wrong;
  for (std::int64_t i = 0; i < count; ++i) {
    const T want = expected(i);
    if (std::memcmp(&got[i], &want, sizeof(T)) == 0) continue;
    if (wrong.count++ == 0) wrong.first = {i, text_of(want), text_of(got[i])};
  }
  return wrong;
}

}  // namespace

Pattern::Pattern(DType dtype, std::optional<Kind> op, int ranks, std::uint64_t seed,
                 std::optional<DType> exact_in)
    : dtype_(dtype), op_(op), ranks_(ranks), seed_(mix(seed + 0x9e3779b97f4a7c15U)) {
  // Booleans have only "and", "or" and "xor".
  if (op_ && dtype_ == DType::boolean) {
    if (op_ == Kind::prod || op_ == Kind::min) op_ = Kind::band;
    if (op_ == Kind::sum || op_ == Kind::max) op_ = Kind::bor;
  }
  limit_ = std::min(exact_integers(dtype_), exact_integers(exact_in.value_or(dtype_)));
  if (!op_) {
    values_ = is_float(dtype_) || is_complex(dtype_) ? Values::bounded : Values::bits;
    return;
  }
  const auto share = [this](std::uint64_t total) {
    const auto n = static_cast<std::uint64_t>(ranks_);
    stride_ = static_cast<std::int64_t>((n + total - 1) / total);
    limit_ = std::max<std::uint64_t>(total / n, 1);
  };
  switch (*op_) {
    case Kind::sum:
    case Kind::avg:
      values_ = Values::bounded;
      share(limit_);
      break;
    case Kind::premul_sum:
      values_ = Values::bounded;
      share(limit_ / 2);  // scale_of() is at most 2.
      break;
    case Kind::prod:
      values_ = Values::twos;
      stride_ = (ranks_ + largest_twos - 1) / largest_twos;
      static_assert(largest_product == 1U << largest_twos);
      break;
    case Kind::min:
    case Kind::max: {
      const bool has_sign = is_float(dtype_) || dtype_ == DType::i8 || dtype_ == DType::i16 ||
                            dtype_ == DType::i32 || dtype_ == DType::i64;
      values_ = has_sign ? Values::balanced : Values::bounded;
      break;
    }
    case Kind::band:
      values_ = Values::one_clears;
      break;
    case Kind::bor:
      values_ = Values::one_sets;
      break;
    case Kind::bxor:
      values_ = Values::bits;
      break;
    case Kind::custom:  // A command line cannot pass a function.
      break;
  }
}

std::int64_t Pattern::value(int rank, std::int64_t index) const noexcept {
  const auto i = static_cast<std::uint64_t>(index);
  const std::uint64_t common = seed_ + i * 0x9e3779b97f4a7c15U;
  const std::uint64_t own =
      mix(common ^ (static_cast<std::uint64_t>(rank) + 1) * 0xd1342543de82ef95U);
  const std::uint64_t ones = dtype_ == DType::boolean ? 1 : ~std::uint64_t{0};
  switch (values_) {
    case Values::bits:
      return std::bit_cast<std::int64_t>(own & ones);
    case Values::bounded:
      if (stride_ > 1 && (rank + index) % stride_ != 0) return 0;
      return static_cast<std::int64_t>(below(own, limit_ + 1));
    case Values::balanced:
      return static_cast<std::int64_t>(below(own, 2 * limit_ + 1)) -
             static_cast<std::int64_t>(limit_);
    case Values::twos:
      if (stride_ > 1 && (rank + index) % stride_ != 0) return 1;
      return 1 + static_cast<std::int64_t>(own >> 63);
    case Values::one_clears:
    case Values::one_sets:
      break;
  }
  const std::uint64_t decision = mix(common);
  const bool decides =
      below(decision, static_cast<std::uint64_t>(ranks_)) == static_cast<std::uint64_t>(rank);
  const std::uint64_t bits = decides ? mix(decision) & ones : 0;
  return std::bit_cast<std::int64_t>(values_ == Values::one_sets ? bits : ones ^ bits);
}

std::int64_t Pattern::reduced(const Source& source, std::int64_t index) const noexcept {
  std::int64_t result = value(source.rank_begin, index);
  if (op_ == Kind::premul_sum) result *= static_cast<std::int64_t>(scale_of(source.rank_begin));
  for (int rank = source.rank_begin + 1; rank < source.rank_end; ++rank) {
    const std::int64_t next = value(rank, index);
    switch (*op_) {
      case Kind::sum:
      case Kind::avg:
        result += next;
        break;
      case Kind::premul_sum:
        result += next * static_cast<std::int64_t>(scale_of(rank));
        break;
      case Kind::prod:
        result *= next;
        break;
      case Kind::min:
        result = std::min(result, next);
        break;
      case Kind::max:
        result = std::max(result, next);
        break;
      case Kind::band:
        result &= next;
        break;
      case Kind::bor:
        result |= next;
        break;
      case Kind::bxor:
        result ^= next;
        break;
      case Kind::custom:
        break;
    }
  }
  return result;
}

template <typename T>
T Pattern::identity() const noexcept {
  switch (op_.value_or(Kind::sum)) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
    case Kind::bor:
    case Kind::bxor:
    case Kind::custom:
      return encode<T>(0);
    case Kind::prod:
      return encode<T>(1);
    case Kind::band:
      return encode<T>(dtype_ == DType::boolean ? 1 : -1);
    case Kind::min:
    case Kind::max:
      break;
  }
  const bool low = op_ == Kind::max;
  if constexpr (std::is_integral_v<T>) {
    return low ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
  } else if constexpr (std::is_same_v<T, Float8E4M3>) {
    return T(low ? -448.0F : 448.0F);  // The type has no infinity.
  } else {
    const float infinity = std::numeric_limits<float>::infinity();
    return T(low ? -infinity : infinity);
  }
}

template <typename T>
T Pattern::expected(const Source& source, std::int64_t index) const noexcept {
  if (source.rank_begin == source.rank_end) return identity<T>();
  const std::int64_t result = reduced(source, index);
  if (op_ != Kind::avg) return encode<T>(result);
  const int n = source.rank_end - source.rank_begin;
  if constexpr (std::is_integral_v<T>) {
    return encode<T>(result / n);
  } else if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    return {static_cast<Part>(result) / static_cast<Part>(n),
            static_cast<Part>(-result) / static_cast<Part>(n)};
  } else if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(result) / n;
  } else {
    return T(static_cast<float>(result) / static_cast<float>(n));
  }
}

void Pattern::fill(void* data, std::int64_t count, int rank, std::int64_t first) const {
  with_type(dtype_, [&]<typename T>() {
    T* to = static_cast<T*>(data);
    for (std::int64_t i = 0; i < count; ++i) to[i] = encode<T>(value(rank, first + i));
  });
}

Mismatches Pattern::check(const void* data, std::int64_t count, const Source& source) const {
  return with_type(dtype_, [&]<typename T>() {
    return compare<T>(data, count,
                      [&](std::int64_t i) { return expected<T>(source, source.first + i); });
  });
}

Mismatches Pattern::check_filled(const void* data, std::int64_t count, int rank,
                                 std::int64_t first) const {
  return with_type(dtype_, [&]<typename T>() {
    return compare<T>(data, count,
                      [&](std::int64_t i) { return encode<T>(value(rank, first + i)); });
  });
}

}  // namespace tutti::tool
