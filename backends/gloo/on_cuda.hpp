#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend_table.hpp>

namespace tutti::backend::gloo {

/// Whether arrays on CUDA devices can be staged: whether there was CUDA when this was built.
bool stages(Device device) noexcept;

/// How many CUDA devices there are.
int device_count();

/// A group on `init.device`, over one of host memory that `make` makes.
/// @throws Error unsupported: which library is missing, what to install.
std::unique_ptr<Backend> make_on_cuda(
    const BackendInit& init,
    const std::function<std::unique_ptr<Backend>(const BackendInit& on_host)>& make);

}  // namespace tutti::backend::gloo
