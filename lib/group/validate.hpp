#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/backend/backend.hpp>
#include <tutti/call_options.hpp>

namespace tutti::internal {

/// What the arguments of a call are checked against.
struct Bounds {
  int rank = 0;
  int size = 1;
  Device device{};  ///< Where arrays have to be.
};

/// Checks one operation and fills in what the caller left out: rows become given, arrays that mean
/// nothing on this rank become empty. @throws Error invalid_argument, count_overflow.
void validate(Op& op, const Bounds& bounds, const CallOptions& options);

template <typename View>
constexpr bool is_plain_array(const View& v, const Bounds& b) noexcept {
  // No element type has more than 8 bytes, so the size in bytes fits too.
  return static_cast<int>(v.dtype) < dtype_count && v.shape.numel() <= INT64_MAX / 8 &&
         v.data != nullptr && v.device == b.device;
}

/// A short cut on the path of every call: true only for operations that validate() would accept
/// unchanged, apart from rows that it would fill in. False says nothing.
/// `kind` is op.kind, a constant where this is inlined.
[[gnu::always_inline]] constexpr bool accept_plain(Operation kind, Op& op,
                                                   const Bounds& b) noexcept {
  const auto plain_reduce = [&] {  // The kinds that every dtype has.
    using Kind = ReduceOp::Kind;
    return op.reduce.kind == Kind::sum || op.reduce.kind == Kind::min ||
           op.reduce.kind == Kind::max || op.reduce.kind == Kind::product;
  };
  const auto in_place = [&] {
    return op.in.data == op.out.data && op.in.dtype == op.out.dtype &&
           op.in.shape == op.out.shape && op.in.device == op.out.device;
  };
  switch (kind) {
    case Operation::barrier:
      return true;
    case Operation::all_reduce:
      return is_plain_array(op.in, b) && in_place() && plain_reduce();
    case Operation::broadcast:
      return is_plain_array(op.in, b) && op.root >= 0 && op.root < b.size;
    case Operation::all_gather: {
      // Vectors with equal rows, apart in memory.
      const auto n = op.in.shape.rows();
      std::int64_t total = 0;
      const bool vectors = op.in.shape.ndim() == 1 && op.out.shape.ndim() == 1;
      if (!vectors || op.rows.given() || op.in.dtype != op.out.dtype || !is_plain_array(op.in, b) ||
          !is_plain_array(op.out, b) || __builtin_mul_overflow(n, std::int64_t{b.size}, &total) ||
          op.out.shape.rows() != total)
        return false;
      const auto* in = static_cast<const std::byte*>(op.in.data);
      const auto* out = static_cast<const std::byte*>(op.out.data);
      if (!(in + op.in.bytes() <= out || out + op.out.bytes() <= in)) return false;
      op.rows = Rows(n);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace tutti::internal
