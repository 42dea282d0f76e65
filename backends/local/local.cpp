// Ranks are threads of one process. The executable specification: every other backend must agree
// with this one (tests/conformance).

#include <unistd.h>

#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend.hpp>

#include "execute.hpp"
#include "group/host_backend.hpp"
#include "group/record.hpp"
#include "hub.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::local {
namespace {

/// The hubs of this process that ranks may still look for. An address in the store would be
/// simpler, but could outlive its hub when a rank never comes.
class Hubs {
 public:
  static Hubs& of_process() {
    static Hubs& hubs = *new Hubs;  // Never destroyed: groups may outlive static objects.
    return hubs;
  }
  std::uint64_t add(const std::shared_ptr<Hub>& hub) {
    const std::lock_guard lock(mutex_);
    std::erase_if(hubs_, [](const auto& entry) { return entry.second.expired(); });
    hubs_.emplace(++last_, hub);
    return last_;
  }
  std::shared_ptr<Hub> find(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto it = hubs_.find(id);
    return it == hubs_.end() ? nullptr : it->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Hub>> hubs_;
  std::uint64_t last_ = 0;
};

/// What rank 0 writes into the store: which hub, and that this process is the right one.
struct Invitation {
  std::uint64_t process = 0;
  std::uint64_t token = 0;
  std::uint64_t hub = 0;
};

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

std::shared_ptr<Hub> find_hub(const BackendInit& init, Deadline limit) {
  if (init.size == 1) return std::make_shared<Hub>(init.name, 1);
  // The name may be used again once the group before is complete: every W arrivals are one.
  const auto arrival = init.store->add("local/arrivals", 1);
  const auto key = fmt::format("local/hub/{}", (arrival - 1) / init.size);
  std::shared_ptr<Hub> hub;
  if (init.rank == 0) {
    hub = std::make_shared<Hub>(init.name, init.size);
    const Invitation invitation{static_cast<std::uint64_t>(::getpid()), process_token(),
                                Hubs::of_process().add(hub)};
    init.store->set(key, std::as_bytes(std::span(&invitation, 1)));
  } else {
    Bytes bytes;
    try {
      bytes = init.store->get(key, limit);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      internal::failf(Errc::timeout, "group '{}': rank 0 of {} has not come before the deadline",
                      init.name, init.size);
    }
    Invitation invitation;
    if (bytes.size() != sizeof invitation)
      internal::failf(Errc::backend, "local: the store holds {} bytes under '{}'; expected {}",
                      bytes.size(), key, sizeof invitation);
    std::memcpy(&invitation, bytes.data(), sizeof invitation);
    if (invitation.process != static_cast<std::uint64_t>(::getpid()) ||
        invitation.token != process_token())
      internal::failf(
          Errc::unsupported,
          "local: its ranks are threads of one process, but rank 0 is process {} and rank "
          "{} is process {}; choose a backend for processes",
          invitation.process, init.rank, ::getpid());
    hub = Hubs::of_process().find(invitation.hub);
    if (hub == nullptr)
      internal::failf(Errc::timeout, "group '{}': rank 0 of {} did not wait for this rank",
                      init.name, init.size);
  }
  if (init.store->add(key + "/read", 1) == init.size) {
    init.store->erase(key);
    init.store->erase(key + "/read");
  }
  return hub;
}

class LocalBackend final : public internal::HostBackend {
 public:
  explicit LocalBackend(const BackendInit& init)
      : HostBackend(init.name, init.rank),
        memory_(init.memory == nullptr ? &host_memory() : init.memory) {
    const auto limit = Deadline::after(init.timeout);
    hub_ = find_hub(init, limit);
    hub_->join(init.rank, limit);
  }
  ~LocalBackend() override {
    hub_->leave(rank());
    stop();
  }

  Memory& memory() noexcept override { return *memory_; }

  void abort(std::string_view why) noexcept override {
    const Error cause(Errc::aborted, fmt::format("rank {} aborted the group: {}", rank(), why),
                      {.rank = rank()});
    hub_->break_with(cause);
    fail_queued(hub_->cause().value_or(cause));
  }
  std::optional<Error> failure() const override { return hub_->cause(); }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    auto& round = hub_->enter(rank(), ops, call);
    const auto count = static_cast<int>(round.collectives());
    for (int k = 0; k < count; ++k) {
      try {
        execute(round, static_cast<std::size_t>(k), rank(), hub_->size());
      } catch (...) {
        hub_->fail_round(round, rank(), ops, call, internal::to_error(std::current_exception()));
      }
      hub_->finish_step(round, k);
      if (round.error) break;  // Final by now, so equal on all ranks.
    }
    const auto error = round.error;
    hub_->leave_round(round);
    if (error) throw Error(*error);
  }

  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    // A message keeps the hub, of which the mailbox is a part.
    auto message = make_state<internal::Mailbox::Message>(
        std::shared_ptr<internal::Mailbox>(hub_, &hub_->mailbox()), op, limit);
    hub_->mailbox().post(message, rank(), call);
    return message;
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
      if (part.size() == 1 && is_point_to_point(part[0].kind))
        hub_->mailbox().refuse(part[0], rank(), why);
      else
        hub_->refuse_round(rank(), part, its, why);
    });
  }

 private:
  Memory* memory_;
  std::shared_ptr<Hub> hub_;
};

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "local",
    .summary = "ranks are threads of one process; the executable specification",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = [] { return std::string(); },
    .make = [](const BackendInit& init) -> std::unique_ptr<Backend> {
      if (!init.args.empty())
        internal::failf(Errc::invalid_argument,
                        "backend 'local' takes no arguments, but was given '{}'", init.args);
      return std::make_unique<LocalBackend>(init);
    },
    .one_process = true,
};

}  // namespace tutti::backend::local
