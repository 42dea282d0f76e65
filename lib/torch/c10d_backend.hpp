#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <tutti/process_group.hpp>

namespace [[gnu::visibility("default")]] tutti {
namespace c10d_door {

/// The arguments of make_backend().
struct BackendOptions {
  c10::intrusive_ptr<::c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = kBackendDefaultTimeout;
  std::string group;    ///< Its name in errors.
  std::string backend;  ///< As GroupOptions::backend.
};

/// Makes a backend of c10d over a tutti::ProcessGroup. Collective. Takes dense tensors in host
/// memory, and sparse ones in allreduce. @throws torch's exceptions; see errors.hpp.
c10::intrusive_ptr<::c10d::Backend> make_backend(const BackendOptions& options);

/// Of a backend that make_backend() made: "shm over shared memory". @throws c10::TypeError for
/// another one.
std::string describe(const c10::intrusive_ptr<::c10d::Backend>& backend);

/// The group under a backend that make_backend() made, which must outlive its use; likewise.
ProcessGroup& group_under(const c10::intrusive_ptr<::c10d::Backend>& backend);

}  // namespace c10d_door
}  // namespace tutti
