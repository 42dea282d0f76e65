#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <tutti/dtype.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Sets inout[i] = in[i] op inout[i] for `count` elements of `dtype`; see ReduceOp::custom().
using CustomReduce = void (*)(const void* in, void* inout, std::int64_t count, DType dtype,
                              void* context);

/// The operation that combines the elements of different ranks. A value type.
///
/// sum, prod     integers wrap modulo 2^n; half types accumulate in float.
/// avg           the sum divided by the number of ranks; integers only with
///               CallOptions::integer_avg.
/// min, max      IEEE 754-2019 minimum and maximum: a NaN on any rank is a NaN on all, -0 < +0.
/// band bor bxor integers and booleans.
/// premul_sum    each rank's elements times that rank's own scale, then the sum; floats, complex.
/// custom        a function of the caller's; every dtype, on host memory.
///
/// Complex numbers have sum, avg, premul_sum and custom; other kinds are Errc::unsupported.
/// Booleans: band, min and prod are "and"; bor, max and sum are "or"; results are 0 or 1.
struct ReduceOp {
  /// The operations of the table above.
  enum class Kind : std::uint8_t { sum, avg, prod, min, max, band, bor, bxor, premul_sum, custom };
  Kind kind = Kind::sum;            ///< Equal on all ranks.
  double scale = 1;                 ///< premul_sum only; may differ per rank, is never compared.
  CustomReduce function = nullptr;  ///< custom only, like the next two members. Never compared.
  void* context = nullptr;          ///< Passed to `function`. Never compared.
  bool commutative = false;         ///< Equal on all ranks.

  static const ReduceOp sum, avg, prod, min, max, band, bor, bxor;
  /// premul_sum, with this rank's scale.
  static constexpr ReduceOp premul(double scale) noexcept { return {Kind::premul_sum, scale}; }

  /// Combines with `f`, an associative function or a lambda without captures; state is passed in
  /// `context`. The result is ((x0 op x1) op x2) ..., where x_r is the array of rank r: in every
  /// call `in` is the value of the lower ranks, `inout` the value of the higher ranks. With
  /// `commutative` a backend may combine in any order and swap the two.
  ///
  /// All ranks pass equivalent functions. A rank calls its function for the part of the elements
  /// that it combines, in pieces of any size, aligned to 64 bytes. A group of one rank never calls
  /// it. exclusive_scan leaves `out` of rank 0 unchanged.
  ///
  /// An exception of `f` ends the call with Errc::backend on all ranks and breaks the group. In an
  /// async call `f` runs on another thread. @param context must outlive the call.
  /// Backends without host memory (nccl) refuse it with Errc::unsupported.
  static constexpr ReduceOp custom(CustomReduce f, bool commutative,
                                   void* context = nullptr) noexcept {
    return {Kind::custom, 1, f, context, commutative};
  }

  friend constexpr bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

inline constexpr ReduceOp ReduceOp::sum{Kind::sum, 1};    ///< Integers wrap; booleans: or.
inline constexpr ReduceOp ReduceOp::avg{Kind::avg, 1};    ///< The sum divided by W.
inline constexpr ReduceOp ReduceOp::prod{Kind::prod, 1};  ///< Integers wrap; booleans: and.
inline constexpr ReduceOp ReduceOp::min{Kind::min, 1};    ///< NaN if any rank has one.
inline constexpr ReduceOp ReduceOp::max{Kind::max, 1};    ///< NaN if any rank has one.
inline constexpr ReduceOp ReduceOp::band{Kind::band, 1};  ///< Bitwise and.
inline constexpr ReduceOp ReduceOp::bor{Kind::bor, 1};    ///< Bitwise or.
inline constexpr ReduceOp ReduceOp::bxor{Kind::bxor, 1};  ///< Bitwise exclusive or.

/// The number of kinds; their values begin at 0.
inline constexpr int reduce_op_count = static_cast<int>(ReduceOp::Kind::custom) + 1;

/// "sum", "premul_sum", ...
std::string_view name_of(ReduceOp::Kind kind) noexcept;
/// The name of op.kind.
inline std::string_view name_of(const ReduceOp& op) noexcept {
  return name_of(op.kind);
}

/// The inverse of name_of(); also accepts "product" and "mean". Empty for an unknown name.
std::optional<ReduceOp::Kind> parse_reduce_op(std::string_view name) noexcept;

}  // namespace tutti
