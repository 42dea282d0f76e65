#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <tutti/process_group.hpp>

#include "torch/groups.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace c10d_door {

/// Makes a backend of c10d over a tutti::ProcessGroup. Collective. Takes dense tensors in host
/// memory or on a CUDA device, and sparse ones in host memory in allreduce. The first call with a
/// tensor on a device makes a second group and is collective. On a device c10d's rules hold: a call
/// comes after the work on the current stream, and Work::wait() makes the current stream wait.
/// @throws torch's exceptions; see errors.hpp.
c10::intrusive_ptr<::c10d::Backend> make_backend(const BackendOptions& options);

/// Of a backend that make_backend() made: "shm over shared memory", and the group for a device if
/// there is one. @throws c10::TypeError for another one.
std::string describe(const c10::intrusive_ptr<::c10d::Backend>& backend);

/// The group for tensors on `device` under the process group `name` of torch, which must outlive
/// its use; likewise. Collective as Groups::on().
ProcessGroup& group_under(const std::string& name, const c10::Device& device);

/// Torch's description of its process group `name`.
std::string description_of(const std::string& name);

}  // namespace c10d_door
}  // namespace tutti
