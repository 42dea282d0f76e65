#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// Makes a group over these libraries: the real ones for the table's entry, a test's own in tests.
/// Blocks until all ranks are there. @throws Error.
std::unique_ptr<Backend> make_nccl(const BackendInit& init, Apis apis);

}  // namespace tutti::backend::nccl
