// The arithmetic of the double: what NCCL's documentation leaves open is done in the way that a
// caller is least likely to expect. Elements round at every hop, the chain of ranks begins at 1, a
// NaN loses against a number, and the average of floats is a sum of products.

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "internal/reduce_kernels.hpp"
#include "support/dtypes.hpp"
#include "support/nccl_double_machine.hpp"

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

template <typename T>
void take_smaller_or_larger(Bytes& into, const Bytes& other, bool smaller) {
  for (std::size_t i = 0; i < into.size() / sizeof(T); ++i) {
    T a;
    T b;
    load(a, into, i);
    load(b, other, i);
    const auto x = Wide<T>(a);
    const auto y = Wide<T>(b);
    store(T(smaller ? std::fmin(x, y) : std::fmax(x, y)), into, i);
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
  const DType dtype = dtype_of(type);
  const std::size_t n = inputs.size();
  const ncclRedOp_t op = how[0].op;
  const bool average = op == ncclAvg;
  with_dtype(dtype, [&]<typename T>() {
    const auto contribution = [&](std::size_t rank) {
      Bytes values = inputs[rank];
      if constexpr (is_float_type<T>) {
        if (average) multiply<T>(values, one_over<T>(n));
        if (op == ncclNumOps) multiply<T>(values, how[rank].scalar);
      }
      return values;
    };
    out = contribution(1 % n);
    for (std::size_t k = 2; k <= n; ++k) {
      if (n == 1) break;
      const Bytes next = contribution(k % n);
      if constexpr (is_float_type<T>) {
        if (op == ncclMin || op == ncclMax) {
          take_smaller_or_larger<T>(out, next, op == ncclMin);
          continue;
        }
      }
      const auto kind = op == ncclProd  ? ReduceOp::Kind::product
                        : op == ncclMin ? ReduceOp::Kind::min
                        : op == ncclMax ? ReduceOp::Kind::max
                                        : ReduceOp::Kind::sum;
      internal::reduce_fn(dtype, kind)(out.data(), out.data(), next.data(),
                                       out.size() / tutti::size_of(dtype));
    }
    if (average && !is_float_type<T>)
      internal::divide(dtype, out.data(), out.size() / tutti::size_of(dtype), n);
  });
}

}  // namespace tutti::test::nccl_double
