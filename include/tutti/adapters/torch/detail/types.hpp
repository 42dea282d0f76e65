#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/error.hpp>

// Conversions of dtypes and devices from and to LibTorch's. A value without a counterpart is an
// Error: unsupported for a dtype that this version of LibTorch lacks, otherwise invalid_argument.

namespace tutti::libtorch {

namespace detail {
// The enumerators of S depend on the version of torch.
template <typename S>
constexpr std::optional<S> scalar_type(DType dtype) noexcept {
  if (dtype == DType::u8) return S::Byte;
  if (dtype == DType::i8) return S::Char;
  if (dtype == DType::i16) return S::Short;
  if (dtype == DType::i32) return S::Int;
  if (dtype == DType::i64) return S::Long;
  if (dtype == DType::boolean) return S::Bool;
  if (dtype == DType::f16) return S::Half;
  if (dtype == DType::bf16) return S::BFloat16;
  if (dtype == DType::f32) return S::Float;
  if (dtype == DType::f64) return S::Double;
  if (dtype == DType::complex64) return S::ComplexFloat;
  if (dtype == DType::complex128) return S::ComplexDouble;
  if constexpr (requires { S::UInt64; }) {
    if (dtype == DType::u16) return S::UInt16;
    if (dtype == DType::u32) return S::UInt32;
    if (dtype == DType::u64) return S::UInt64;
  }
  if constexpr (requires { S::Float8_e5m2; }) {
    if (dtype == DType::f8e4m3) return S::Float8_e4m3fn;
    if (dtype == DType::f8e5m2) return S::Float8_e5m2;
  }
  return std::nullopt;
}
}  // namespace detail

inline c10::ScalarType to_torch(DType dtype) {
  if (const auto type = detail::scalar_type<c10::ScalarType>(dtype)) return *type;
  fail(Errc::unsupported, "this version of LibTorch has no " + std::string(name_of(dtype)));
}
inline DType from_torch(c10::ScalarType type) {
  for (int i = 0; i < dtype_count; ++i)
    if (detail::scalar_type<c10::ScalarType>(static_cast<DType>(i)) == type)
      return static_cast<DType>(i);
  fail(Errc::invalid_argument, "torch: " + std::string(c10::toString(type)) + " has no dtype");
}

inline c10::Device to_torch(Device device) {
  if (device.type == DeviceType::cpu) return c10::kCPU;
  return {device.type == DeviceType::cuda ? c10::kCUDA : c10::kPrivateUse1,
          static_cast<c10::DeviceIndex>(device.index)};
}
inline Device from_torch(const c10::Device& device) {
  const int index = std::max(0, static_cast<int>(device.index()));  // -1: no index.
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {DeviceType::cuda, index};
  if (device.type() == c10::DeviceType::PrivateUse1) return {DeviceType::extension, index};
  fail(Errc::invalid_argument, "torch: device " + device.str() + " has no views");
}

}  // namespace tutti::libtorch
