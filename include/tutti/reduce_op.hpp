#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace [[gnu::visibility("default")]] tutti {

/// How elements of different ranks are combined. A value type.
///
/// sum, product  integers wrap modulo 2^n; half types accumulate in float.
/// avg           the sum divided by the number of ranks; integers only with
///               CallOptions::integer_avg.
/// min, max      IEEE 754-2019 minimum and maximum: a NaN on any rank is a NaN on all, -0 < +0.
/// band bor bxor integers and booleans.
/// premul_sum    each rank's elements times that rank's own scale, then the sum; floats only.
///
/// Booleans: band, min and product are "and"; bor, max and sum are "or"; results are 0 or 1.
struct ReduceOp {
  enum class Kind : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };
  Kind kind = Kind::sum;
  double scale = 1;  ///< premul_sum only; may differ per rank, is never compared.

  static const ReduceOp sum, avg, product, min, max, band, bor, bxor;
  static constexpr ReduceOp premul(double scale) noexcept { return {Kind::premul_sum, scale}; }

  friend constexpr bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

inline constexpr ReduceOp ReduceOp::sum{Kind::sum, 1};
inline constexpr ReduceOp ReduceOp::avg{Kind::avg, 1};
inline constexpr ReduceOp ReduceOp::product{Kind::product, 1};
inline constexpr ReduceOp ReduceOp::min{Kind::min, 1};
inline constexpr ReduceOp ReduceOp::max{Kind::max, 1};
inline constexpr ReduceOp ReduceOp::band{Kind::band, 1};
inline constexpr ReduceOp ReduceOp::bor{Kind::bor, 1};
inline constexpr ReduceOp ReduceOp::bxor{Kind::bxor, 1};

inline constexpr int reduce_op_count = 9;

/// "sum", "premul_sum", ...
std::string_view name_of(ReduceOp::Kind kind) noexcept;

/// The reverse of name_of(); also takes "prod" and "mean". Null for an unknown name.
std::optional<ReduceOp::Kind> parse_reduce_op(std::string_view name) noexcept;

}  // namespace tutti
