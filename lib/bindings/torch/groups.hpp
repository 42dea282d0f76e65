#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <tutti/process_group.hpp>

namespace tutti::c10d_door {

/// The arguments of make_backend().
struct BackendOptions {
  c10::intrusive_ptr<::c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = kBackendDefaultTimeout;
  std::string group;                    ///< Its name in errors.
  std::string backend;                  ///< As GroupOptions::backend, for tensors in host memory.
  std::string device_backend = "auto";  ///< For tensors on a CUDA device; "auto" may also stage.
};

/// The two groups under a backend of c10d, of the same ranks: one for tensors in host memory, made
/// with this object, and one for tensors on a CUDA device, made by the first call that has one.
class Groups {
 public:
  /// Collective. @throws Error.
  explicit Groups(const BackendOptions& options);

  ProcessGroup& host() noexcept { return host_; }
  /// The group for tensors on `device`, of type cpu or cuda. Collective in the first call for cuda:
  /// "auto" takes nccl, or gloo if a rank cannot use nccl. @throws Error unsupported if no backend
  /// serves the device; invalid_argument for a second device; as ProcessGroup::create().
  ProcessGroup& on(const c10::Device& device);
  /// Collective: the groups of some of the ranks; empty on the others. @throws Error.
  std::unique_ptr<Groups> subset(std::span<const int> ranks, const CallOptions& options);

  void set_timeout(std::chrono::nanoseconds timeout);
  void abort(std::string_view why) noexcept;
  std::string describe() const;

 private:
  Groups(ProcessGroup host, std::shared_ptr<Store> store, std::string device_backend);
  ProcessGroup make(const c10::Device& device);

  std::shared_ptr<Store> store_;
  std::string device_backend_;
  ProcessGroup host_;
  std::mutex making_;
  std::optional<ProcessGroup> on_device_;
  c10::Device device_{c10::kCPU};
  std::atomic<ProcessGroup*> made_ = nullptr;  // Set after the two above, which then stay.
};

}  // namespace tutti::c10d_door
