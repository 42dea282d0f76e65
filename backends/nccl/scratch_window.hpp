#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>
#include <tutti/deadline.hpp>

#include "communicator.hpp"
#include "launcher.hpp"
#include "registrations.hpp"

namespace tutti::backend::nccl {

/// The setting scratch_window: a block of NCCL's memory, registered with the group's communicator,
/// for the scratch memory of calls on the group's own stream. NCCL moves data of a window without
/// copies of its own.
class ScratchWindow {
 public:
  /// The arguments outlive it.
  ScratchWindow(std::shared_ptr<Gpu> gpu, const BackendInit& init,
                std::shared_ptr<Communicator> communicator, Launcher& launcher,
                Registrations& registrations);
  /// Frees the block once nothing uses it. If NCCL or the device may use it still, it is leaked.
  ~ScratchWindow();
  ScratchWindow(const ScratchWindow&) = delete;
  ScratchWindow& operator=(const ScratchWindow&) = delete;

  /// @throws Error unsupported if the setting needs another NCCL.
  void check_version() const;
  /// Makes the block; all ranks call it. Does nothing without the setting. @throws Error.
  void open(Deadline limit);

 private:
  bool in_use() const;

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  std::shared_ptr<Communicator> communicator_;
  Launcher& launcher_;
  Registrations& registrations_;
  std::size_t bytes_;
  void* data_ = nullptr;
  bool opened_ = false;  // Otherwise the registration of data_ has failed, if there is data_.
};

}  // namespace tutti::backend::nccl
