#pragma once

#include <concepts>
#include <cstdint>
#include <string>

// All copies of DLPack's header share one include guard, so a framework's copy, included first, is
// used.
#if !defined(DLPACK_DLPACK_H_)
#include <dlpack/dlpack.h>
#endif

#include <tutti/device.hpp>
#include <tutti/dtype.hpp>
#include <tutti/error.hpp>

// Conversions of dtypes and devices from and to DLPack's. A value without a counterpart is an Error
// invalid_argument.

/// Arrays of DLPack as views, and the reverse.
namespace tutti::dlpack {

/// DLManagedTensor, or DLManagedTensorVersioned where the header has it (DLPack 1.0).
template <typename M>
concept Managed = requires(M& managed) {
  { managed.dl_tensor } -> std::same_as<DLTensor&>;
  managed.deleter(&managed);
};

/// Uses numbers, because an array may come from a newer DLPack than the included header.
constexpr DLDataType to_dlpack(DType dtype) noexcept {
  const auto of_code = [&](int code) {
    return DLDataType{static_cast<std::uint8_t>(code),
                      static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  };
  if (dtype == DType::boolean) return of_code(6);
  if (dtype == DType::bf16) return of_code(4);
  if (dtype == DType::f8e4m3) return of_code(10);  // Without infinity: "e4m3fn".
  if (dtype == DType::f8e5m2) return of_code(12);
  if (is_float(dtype)) return of_code(2);
  if (is_complex(dtype)) return of_code(5);
  const bool has_sign =
      dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 || dtype == DType::i64;
  return of_code(has_sign ? 0 : 1);
}

/// The dtype of an element. Several lanes are refused.
inline DType from_dlpack(const DLDataType& type) {
  if (type.lanes != 1)
    fail(Errc::invalid_argument, "dlpack: an element has " + std::to_string(type.lanes) +
                                     " lanes; it must have 1: make the lanes a dimension");
  for (int i = 0; i < dtype_count; ++i) {
    const DLDataType same = to_dlpack(static_cast<DType>(i));
    if (same.code == type.code && same.bits == type.bits) return static_cast<DType>(i);
  }
  fail(Errc::invalid_argument, "dlpack: type code " + std::to_string(type.code) + " of " +
                                   std::to_string(type.bits) + " bits has no dtype");
}

/// Keeps the number of the type: DeviceType has the values of DLDeviceType.
inline DLDevice to_dlpack(Device device) noexcept {
  return {static_cast<DLDeviceType>(device.type), device.index};
}

/// Pinned host memory (kDLCUDAHost) is cpu.
inline Device from_dlpack(const DLDevice& device) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return {};
  for (const DeviceType type : {DeviceType::cuda, DeviceType::extension})
    if (static_cast<int>(device.device_type) == static_cast<int>(type))
      return {type, device.device_id};
  fail(Errc::invalid_argument,
       "dlpack: device type " + std::to_string(static_cast<int>(device.device_type)) +
           " has no view; use cpu (1), cuda (2), pinned (3) or extension (12)");
}

}  // namespace tutti::dlpack
