#include "scratch_window.hpp"

#include <chrono>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "memory.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

/// The longest wait for the group's stream at the end.
constexpr std::chrono::seconds idle_bound{1};

}  // namespace

ScratchWindow::ScratchWindow(std::shared_ptr<Gpu> gpu, const BackendInit& init,
                             std::shared_ptr<Communicator> communicator, Launcher& launcher,
                             Registrations& registrations)
    : gpu_(std::move(gpu)),
      init_(init),
      communicator_(std::move(communicator)),
      launcher_(launcher),
      registrations_(registrations),
      bytes_(init.size == 1 ? 0 : gpu_->settings().scratch_window) {}

void ScratchWindow::check_version() const {
  if (bytes_ == 0) return;
  const auto has = Features::of(gpu_->nccl());
  if (has.windows && has.memory) return;
  internal::failf(Errc::unsupported,
                  "the setting 'scratch_window' of backend 'nccl' needs NCCL 2.30.7 or newer, and "
                  "libnccl.so.2 is NCCL {}",
                  version_text(has.version));
}

void ScratchWindow::open(Deadline limit) {
  if (bytes_ == 0) return;
  auto& memory = nccl_memory(gpu_->apis(), gpu_->index());
  data_ = memory.allocate(bytes_, launcher_.stream());
  const TensorView block(data_, DType::u8, {static_cast<std::int64_t>(bytes_)}, memory.device());
  const auto kind = registrations_.add_own(block, limit);
  if (kind == RegistrationKind::none) {
    memory.release(std::exchange(data_, nullptr), bytes_, launcher_.stream());
    init_.logger(LogLevel::warning,
                 fmt::format("group '{}': scratch_window has no effect, because NCCL registers no "
                             "memory (NCCL_LOCAL_REGISTER=0)",
                             init_.name));
    return;
  }
  if (kind == RegistrationKind::buffer)
    init_.logger(
        LogLevel::info,
        fmt::format("group '{}': NCCL makes no windows on these devices, so scratch_window "
                    "is a registered buffer",
                    init_.name));
  launcher_.use_block({static_cast<std::byte*>(data_), bytes_});
  opened_ = true;
}

bool ScratchWindow::in_use() const {
  // A registration that has failed may be under way still.
  const bool is_registered = registrations_.has_own() || !opened_;
  if (is_registered && !communicator_->is_gone()) return true;
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  const cuda::RelaxedCapture relaxed(gpu_->cuda());
  auto end = gpu_->event();
  launcher_.mark_end(end);
  const auto limit = Deadline::after(idle_bound);
  for (Pause pause; !end.done(); pause())
    if (limit.expired()) return true;
  return false;
}

ScratchWindow::~ScratchWindow() {
  if (data_ == nullptr) return;
  try {
    if (!in_use())
      nccl_memory(gpu_->apis(), gpu_->index()).release(data_, bytes_, launcher_.stream());
  } catch (...) {  // The device is lost, and its memory with it.
  }
}

}  // namespace tutti::backend::nccl
