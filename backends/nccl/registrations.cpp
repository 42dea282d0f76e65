#include "registrations.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "memory.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

constexpr int collective_symmetric = 0x01;  // NCCL_WIN_COLL_SYMMETRIC

}  // namespace

Registrations::Registrations(std::shared_ptr<Gpu> gpu, const BackendInit& init, Memory& memory,
                             std::shared_ptr<Communicator> communicator, Launcher& launcher,
                             Failure& failure)
    : gpu_(std::move(gpu)),
      init_(init),
      memory_(memory),
      communicator_(std::move(communicator)),
      launcher_(launcher),
      failure_(failure) {}

Memory& Registrations::memory() const noexcept {
  try {
    if (Features::of(gpu_->nccl()).memory) return nccl_memory(gpu_->apis(), gpu_->index());
  } catch (...) {  // NCCL's version cannot be queried.
  }
  return memory_;
}

RegistrationKind Registrations::kind_of(const TensorView& block, Stream stream) const {
  if (cuda::is_capturing(*gpu_, to_cuda(stream)))
    tutti::fail(Errc::unsupported,
                "memory cannot be registered while the stream is captured into a CUDA graph");
  const auto has = Features::of(gpu_->nccl());
  if (!has.registration)
    internal::failf(Errc::unsupported,
                    "memory cannot be registered: it needs NCCL 2.19 or newer (symmetric windows: "
                    "2.30.7), and libnccl.so.2 is NCCL {}",
                    version_text(has.version));
  if (!has.windows || !has.memory) return RegistrationKind::buffer;
  const auto* base =
      nccl_memory(gpu_->apis(), gpu_->index()).block_for_window(block.data, block.bytes());
  const bool window = base != nullptr &&
                      (has.windows_in_blocks || (base == block.data && !has_window_at(block.data)));
  return window ? RegistrationKind::window : RegistrationKind::buffer;
}

bool Registrations::has_window_at(const void* data) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.kind == RegistrationKind::window && entry.data == data;
  });
}

Registration Registrations::add(const TensorView& block, RegistrationKind kind, Deadline limit,
                                std::weak_ptr<void> owner) {
  failure_.require_intact();
  // On the heap, because NCCL may write the handle until the communicator has ended.
  const auto handle = std::make_shared<void*>(nullptr);
  const std::string what = fmt::format("register_memory of {} bytes", block.bytes());
  Entry entry{};
  try {
    entry = make(block, kind, handle.get(), what, limit);
  } catch (...) {
    communicator_->keep(handle);
    const Error error = internal::to_error(std::current_exception());
    const Error mine(error.code(), fmt::format("{}: {}", what, error.message()),
                     {.group = init_.name, .operation = "register_memory", .rank = init_.rank});
    if (error.code() == Errc::timeout)
      failure_.fail_late(mine, {.call = what}, 3 * first_look(init_.size));
    else
      failure_.fail(mine);
    throw failure_.await_cause();
  }
  if (entry.handle == nullptr) return {};  // NCCL's settings forbid it (NCCL_LOCAL_REGISTER=0).
  const auto end_of = [this, entry, owner = std::move(owner)](const RegistrationKind* its_kind) {
    if (const auto alive = owner.lock()) end(entry);
    delete its_kind;
  };
  Registration made(
      std::shared_ptr<const RegistrationKind>(new RegistrationKind(entry.kind), end_of));
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  return made;
}

Registrations::Entry Registrations::make(const TensorView& block, RegistrationKind kind,
                                         void** handle, const std::string& what, Deadline limit) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  // Another thread's capture would prohibit the registration.
  const cuda::RelaxedCapture relaxed(gpu_->cuda());
  launcher_.await(limit);
  const auto turn = gpu_->turn(limit);
  if (kind == RegistrationKind::window) await_window(block, handle, what, limit);
  if (*handle != nullptr) return {kind, block.data, *handle};
  // A buffer was requested, or NCCL made no window, as on devices without peer access.
  communicator_->use([&](ncclComm_t comm) {
    check(gpu_->nccl(), gpu_->nccl().comm_register(comm, block.data, block.bytes(), handle),
          "ncclCommRegister");
  });
  return {RegistrationKind::buffer, block.data, *handle};
}

void Registrations::await_window(const TensorView& block, void** handle, const std::string& what,
                                 Deadline limit) {
  using Clock = std::chrono::steady_clock;
  const auto& nccl = gpu_->nccl();
  communicator_->use([&](ncclComm_t comm) {
    check(nccl,
          nccl.comm_window_register(comm, block.data, block.bytes(), handle, collective_symmetric),
          "ncclCommWindowRegister");
  });
  auto next_look = Clock::now() + first_look(init_.size);
  const auto look = [&] {
    failure_.require_intact();
    if (Clock::now() < next_look) return;
    next_look = Clock::now() + first_look(init_.size);
    if (failure_.poll_peers({.call = what})) failure_.require_intact();
  };
  cuda::await(
      limit, late_in_nccl, [&] { return communicator_->ready(); }, look);
}

void Registrations::end(const Entry& entry) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, entry);
    if (found == entries_.end()) return;  // The group has ended.
    entries_.erase(found);
    deregister(entry);
  }
  // The caller may free the memory when this returns: an aborted communicator must have ended.
  if (failure_.is_broken()) (void)failure_.await_cause();
}

void Registrations::end_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : std::exchange(entries_, {})) deregister(entry);
}

void Registrations::deregister(const Entry& entry) noexcept {
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    const cuda::RelaxedCapture relaxed(gpu_->cuda());
    const auto limit = Deadline::after(init_.timeout);
    launcher_.await(limit);
    auto calls_end = gpu_->event();
    {
      const auto turn = gpu_->turn(limit);
      launcher_.mark_end(calls_end);
    }
    // Waits without the turn, which the peers' calls may need. At the limit the memory stays
    // registered.
    for (Pause pause; !calls_end.done(); pause())
      if (failure_.is_broken() || limit.expired()) return;
    const auto turn = gpu_->turn(limit);
    if (failure_.is_broken()) return;
    const auto& nccl = gpu_->nccl();
    communicator_->use([&](ncclComm_t comm) {
      if (entry.kind == RegistrationKind::window)
        check(nccl, nccl.comm_window_deregister(comm, entry.handle), "ncclCommWindowDeregister");
      else
        check(nccl, nccl.comm_deregister(comm, entry.handle), "ncclCommDeregister");
    });
  } catch (...) {  // A broken group, or a timeout.
  }
}

}  // namespace tutti::backend::nccl
