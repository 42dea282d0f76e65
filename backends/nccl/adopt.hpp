#pragma once

#include <functional>

#include <tutti/backend/backend.hpp>
#include <tutti/deadline.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// Whether the communicator that `init` brings is the one of this rank of this group. Waits until
/// it is ready; calls `look`, which may throw, meanwhile. Changes nothing about it.
/// @throws Error invalid_argument with both sides, backend when it has failed, timeout.
void check_adopted(const Gpu& gpu, const BackendInit& init, Deadline limit,
                   const std::function<void()>& look);

}  // namespace tutti::backend::nccl
