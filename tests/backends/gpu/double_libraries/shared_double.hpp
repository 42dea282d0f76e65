#pragma once

#include "nccl/gpu.hpp"

// The double of NCCL and CUDA within libcudart.so.13, for the other two libraries.

extern "C" {

/// The next copy of NCCL in this process: the installed library, then its copies.
const tutti::backend::nccl::NcclApi* tutti_double_next_nccl();
const tutti::backend::nccl::DriverApi* tutti_double_driver();
}
