// What a group does with registered memory.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "group.hpp"
#include "memory.hpp"
#include "values/broken.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

using namespace std::chrono_literals;

constexpr int collective_symmetric = 0x01;  // NCCL_WIN_COLL_SYMMETRIC
/// Between two looks into the store while the other ranks are waited for.
constexpr auto look_every = 20ms;

}  // namespace

/// What a Registration owns.
class Group::Held {
 public:
  Held(std::weak_ptr<Group> group, const Registered& entry)
      : kind(entry.kind), group_(std::move(group)), entry_(entry) {}
  ~Held() {
    if (const auto group = group_.lock()) group->end_registration(entry_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const RegistrationKind kind;

 private:
  std::weak_ptr<Group> group_;
  Registered entry_;
};

Memory& Group::registrable_memory() const noexcept {
  try {
    if (Features::of(gpu_->nccl()).memory) return nccl_memory(gpu_->apis(), gpu_->index());
  } catch (...) {  // The version cannot be asked.
  }
  return memory_;
}

RegistrationKind Group::registrable(const TensorView& block, Stream stream) const {
  if (cuda::is_capturing(*gpu_, to_cuda(stream)))
    tutti::fail(Errc::unsupported,
                "memory cannot be registered while the stream is captured into a CUDA graph");
  const auto has = Features::of(gpu_->nccl());
  if (!has.registration)
    internal::failf(Errc::unsupported,
                    "memory cannot be registered: it needs NCCL 2.19 or newer (symmetric windows: "
                    "2.27), and libnccl.so.2 is NCCL {}",
                    version_text(has.version));
  const bool window =
      has.windows && has.memory &&
      nccl_memory(gpu_->apis(), gpu_->index()).can_be_a_window(block.data, block.bytes());
  return window ? RegistrationKind::window : RegistrationKind::buffer;
}

Registration Group::register_memory(const TensorView& block, RegistrationKind kind,
                                    Deadline limit) {
  if (broken_) throw internal::broken(*failure());
  // NCCL may write to it until the communicator has ended.
  const auto handle = std::make_shared<void*>(nullptr);
  const std::string what = fmt::format("register_memory of {} bytes", block.bytes());
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    const cuda::RelaxedCapture relaxed(gpu_->cuda());  // Another thread may capture.
    await_launch(limit);
    const auto turn = gpu_->turn(limit);
    const auto& nccl = gpu_->nccl();
    if (kind == RegistrationKind::window) await_window(block, handle.get(), what, limit);
    if (*handle == nullptr) {  // Devices that cannot reach one another have no windows.
      kind = RegistrationKind::buffer;
      communicator_->use([&](ncclComm_t comm) {
        check(nccl, nccl.comm_register(comm, block.data, block.bytes(), handle.get()),
              "ncclCommRegister");
      });
    }
  } catch (...) {
    communicator_->keep(handle);
    const Error error = internal::to_error(std::current_exception());
    const Error mine(error.code(), fmt::format("{}: {}", what, error.message()),
                     {.group = init_.name, .operation = "register_memory", .rank = init_.rank});
    if (error.code() == Errc::timeout && !broken_)
      break_with(agreement_.call_the_roll(mine, what, 3 * look_every));
    else
      fail(mine);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    throw Error(failure_->code(), failure_->message() + late_, failure_->where());
  }
  if (*handle == nullptr) return {};  // NCCL's settings are against it.
  const Registered entry{kind, *handle};
  const auto held = std::make_shared<Held>(weak_from_this(), entry);
  const std::lock_guard lock(registered_mutex_);
  registered_.push_back(entry);
  return Registration(std::shared_ptr<const RegistrationKind>(held, &held->kind));
}

void Group::await_window(const TensorView& block, void** handle, const std::string& what,
                         Deadline limit) {
  const auto& nccl = gpu_->nccl();
  communicator_->use([&](ncclComm_t comm) {
    check(nccl,
          nccl.comm_window_register(comm, block.data, block.bytes(), handle, collective_symmetric),
          "ncclCommWindowRegister");
  });
  auto next_look = Clock::now() + look_every;
  communicator_->await(limit, [&] {
    if (broken_) throw internal::broken(*failure());
    if (Clock::now() < next_look) return;
    next_look = Clock::now() + look_every;
    const auto cause = agreement_.look(what);
    if (!cause) return;
    break_with(*cause);
    throw Error(*cause);
  });
}

void Group::end_registration(const Registered& entry) noexcept {
  const std::lock_guard lock(registered_mutex_);
  const auto found = std::ranges::find(registered_, entry);
  if (found == registered_.end()) return;  // The group has left.
  registered_.erase(found);
  deregister(entry);
}

void Group::end_registrations() noexcept {
  const std::lock_guard lock(registered_mutex_);
  for (const auto& entry : std::exchange(registered_, {})) deregister(entry);
}

void Group::deregister(const Registered& entry) noexcept {
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    const cuda::RelaxedCapture relaxed(gpu_->cuda());
    const auto limit = Deadline::after(init_.timeout);
    await_launch(limit);
    auto under_way = gpu_->event();
    {
      const auto turn = gpu_->turn(limit);
      const std::lock_guard lock(launch_mutex_);
      catch_up();
      under_way.record(stream_.get());
    }
    // Without the turn: what these calls wait for may need it. A late one breaks the group.
    for (Pause pause; !under_way.done(); pause())
      if (broken_ || limit.expired()) return;
    const auto turn = gpu_->turn(limit);
    if (broken_) return;
    const auto& nccl = gpu_->nccl();
    communicator_->use([&](ncclComm_t comm) {
      if (entry.kind == RegistrationKind::window)
        check(nccl, nccl.comm_window_deregister(comm, entry.handle), "ncclCommWindowDeregister");
      else
        check(nccl, nccl.comm_deregister(comm, entry.handle), "ncclCommDeregister");
    });
  } catch (...) {  // The group breaks, or has broken, and forgets everything.
  }
}

}  // namespace tutti::backend::nccl
