#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// Makes a backend for arrays on a CUDA device from `host`, a backend of host memory. When the
/// earlier work on Call::stream has ended, a call copies its arrays to pinned memory, runs on
/// `host`, and copies the results back. Every call ends on the host, so any stream may use its
/// results; an async call ends on a thread of the group.
///
/// `init`: the group on the device. A sub-group decorates a sub-group of `host`. @throws Error
/// unsupported when there is no such device.
std::unique_ptr<Backend> make_staged(std::unique_ptr<Backend> host, const BackendInit& init,
                                     const CudaApi& cuda);

}  // namespace tutti::backend::cuda
