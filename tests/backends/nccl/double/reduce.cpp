// The arithmetic of the double. Behaviour that NCCL's documentation leaves open is implemented in
// the way that a caller is least likely to expect. Elements round at every hop, the chain of ranks
// begins at 1, a NaN loses against a number, and the average of floats is a sum of products.

#include "backends/nccl/double/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "support/dtypes.hpp"

namespace tutti::test::nccl_double {

namespace {

using Bytes = std::vector<std::byte>;

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DType::i8;
    case ncclUint8:
      return DType::u8;
    case ncclInt32:
      return DType::i32;
    case ncclUint32:
      return DType::u32;
    case ncclInt64:
      return DType::i64;
    case ncclUint64:
      return DType::u64;
    case ncclFloat16:
      return DType::f16;
    case ncclFloat32:
      return DType::f32;
    case ncclFloat64:
      return DType::f64;
    case ncclBfloat16:
      return DType::bf16;
    case ncclFloat8e4m3:
      return DType::f8e4m3;
    case ncclFloat8e5m2:
      return DType::f8e5m2;
    default:
      throw std::logic_error("no such ncclDataType_t");
  }
}

template <typename T>
void load(T& value, const Bytes& from, std::size_t i) {
  std::memcpy(static_cast<void*>(&value), from.data() + i * sizeof(T), sizeof(T));
}
template <typename T>
void store(const T& value, Bytes& to, std::size_t i) {
  std::memcpy(to.data() + i * sizeof(T), static_cast<const void*>(&value), sizeof(T));
}

template <typename T>
void multiply(Bytes& values, const std::array<std::byte, 8>& scalar) {
  T factor;
  std::memcpy(static_cast<void*>(&factor), scalar.data(), sizeof(T));
  for (std::size_t i = 0; i < values.size() / sizeof(T); ++i) {
    T x;
    load(x, values, i);
    store(T(Wide<T>(x) * Wide<T>(factor)), values, i);
  }
}

/// Integers wrap, which unsigned ones may.
template <typename T>
T combined(ncclRedOp_t op, T a, T b) {
  if constexpr (is_float_type<T>) {
    const auto x = Wide<T>(a);
    const auto y = Wide<T>(b);
    if (op == ncclMin) return T(std::fmin(x, y));
    if (op == ncclMax) return T(std::fmax(x, y));
    return T(op == ncclProd ? x * y : x + y);
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (op == ncclMin) return std::min(a, b);
    if (op == ncclMax) return std::max(a, b);
    return static_cast<T>(op == ncclProd ? x * y : x + y);
  }
}

template <typename T>
void combine(ncclRedOp_t op, Bytes& into, const Bytes& other) {
  for (std::size_t i = 0; i < into.size() / sizeof(T); ++i) {
    T a;
    T b;
    load(a, into, i);
    load(b, other, i);
    store(combined(op, a, b), into, i);
  }
}

/// Of integers: toward zero.
template <typename T>
void divide(Bytes& values, std::size_t by) {
  for (std::size_t i = 0; i < values.size() / sizeof(T); ++i) {
    T x;
    load(x, values, i);
    store(static_cast<T>(x / static_cast<T>(by)), values, i);
  }
}

template <typename T>
std::array<std::byte, 8> one_over(std::size_t n) {
  const T value(static_cast<Wide<T>>(1.0 / static_cast<double>(n)));
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), static_cast<const void*>(&value), sizeof(T));
  return bytes;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  return tutti::size_of(dtype_of(type));
}

void reduce(ncclDataType_t type, std::span<const Bytes> inputs, std::span<const Reduction> how,
            Bytes& out) {
  const std::size_t n = inputs.size();
  const ncclRedOp_t op = how[0].op;
  const bool average = op == ncclAvg;
  visit_dtype(dtype_of(type), [&]<typename T>() {
    if constexpr (!is_complex_type<T>) {  // NCCL has none.
      const auto contribution = [&](std::size_t rank) {
        Bytes values = inputs[rank];
        if constexpr (is_float_type<T>) {
          if (average) multiply<T>(values, one_over<T>(n));
          if (op == ncclNumOps) multiply<T>(values, how[rank].scalar);
        }
        return values;
      };
      out = contribution(1 % n);
      for (std::size_t k = 2; k <= n && n > 1; ++k) combine<T>(op, out, contribution(k % n));
      if constexpr (!is_float_type<T>) {
        if (average) divide<T>(out, n);
      }
    }
  });
}

}  // namespace tutti::test::nccl_double
