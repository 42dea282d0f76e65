#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// A decorator that runs calls on arrays of a CUDA device over a backend of host memory. When the
/// earlier work on Call::stream has ended, the arrays are copied to pinned memory, `host` runs the
/// call, and the results are copied back. Every call ends on the host, so that any stream may use
/// its results; an async call ends on a thread of the group.
///
/// `init`: of the group on the device. Sub-groups are decorated sub-groups of `host`. @throws Error
/// unsupported without such a device.
std::unique_ptr<Backend> make_staged(std::unique_ptr<Backend> host, const BackendInit& init,
                                     const CudaApi& cuda);

}  // namespace tutti::backend::cuda
