#pragma once

#include <cstddef>
#include <span>

#include "nccl/gpu.hpp"

// The functions of the double as tables of the backend.

namespace tutti::test::nccl_double {

void fill_cuda_table(backend::nccl::CudaApi& table);
void fill_nccl_table(backend::nccl::NcclApi& table);
void fill_driver_table(backend::nccl::DriverApi& table);
/// The only image that the driver takes.
std::span<const std::byte> kernel_image();

}  // namespace tutti::test::nccl_double
