#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// A backend of host memory for arrays on a CUDA device: when what Call::stream had to do at the
/// call has ended they are copied to pinned memory, `host` does the call, the results are copied
/// back. Every call ends on the host, so that any stream may use what it gave; an async one does so
/// on a thread of the group.
///
/// `init` is that of the group on the device. Sub-groups are those of `host`, decorated.
/// @throws Error unsupported unless there is such a device.
std::unique_ptr<Backend> make_staged(std::unique_ptr<Backend> host, const BackendInit& init,
                                     const CudaApi& cuda);

}  // namespace tutti::backend::cuda
