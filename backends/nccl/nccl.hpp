#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// Makes a group that calls `apis`; tests pass their own tables. Blocks until all ranks have
/// joined. @throws Error.
std::unique_ptr<Backend> make_nccl(const BackendInit& init, Apis apis);

}  // namespace tutti::backend::nccl
