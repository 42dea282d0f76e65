#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend_table.hpp>

namespace tutti::backend::gloo {

/// True if arrays on CUDA devices can be staged; false in a build without CUDA.
bool stages(Device device) noexcept;

/// The number of CUDA devices.
int device_count();

/// A group on `init.device` that stages its arrays through the host-memory group that `make`
/// returns. @throws Error unsupported if the device cannot be used; its text has the reason.
std::unique_ptr<Backend> make_on_cuda(
    const BackendInit& init,
    const std::function<std::unique_ptr<Backend>(const BackendInit& on_host)>& make);

}  // namespace tutti::backend::gloo
