// The backend local: ranks are threads of one process. It is the executable specification: every
// other backend must agree with it (tests/conformance).

#include <unistd.h>

#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "backend/rendezvous.hpp"
#include "backend/waiting.hpp"
#include "execute.hpp"
#include "shared_state.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::local {
namespace {

/// The shared states of this process that ranks may still look up. A pointer in the store would be
/// simpler, but it could dangle when a rank never joins.
class SharedStates {
 public:
  static SharedStates& of_process() {
    // Never destroyed: groups may outlive static objects.
    static SharedStates& states = *new SharedStates;
    return states;
  }
  std::uint64_t add(const std::shared_ptr<SharedState>& shared) {
    const std::lock_guard lock(mutex_);
    std::erase_if(states_, [](const auto& entry) { return entry.second.expired(); });
    states_.emplace(++last_, shared);
    return last_;
  }
  std::shared_ptr<SharedState> find(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto it = states_.find(id);
    return it == states_.end() ? nullptr : it->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<SharedState>> states_;
  std::uint64_t last_ = 0;
};

/// The record that a rank writes into the store: its process, and rank 0 its shared state.
struct RendezvousInfo {
  std::uint64_t process = 0;
  std::uint64_t token = 0;
  std::uint64_t shared = 0;
};

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

std::shared_ptr<SharedState> find_shared_state(const BackendInit& init,
                                               internal::Rendezvous& rendezvous) {
  std::shared_ptr<SharedState> shared;
  RendezvousInfo mine{static_cast<std::uint64_t>(::getpid()), process_token(), 0};
  if (init.rank == 0) {
    shared = std::make_shared<SharedState>(internal::GroupNames(init.name, init.whole), init.size);
    mine.shared = SharedStates::of_process().add(shared);
  }
  const auto infos = rendezvous.exchange("local", std::as_bytes(std::span(&mine, 1)));
  RendezvousInfo first;
  for (std::size_t r = 0; r < infos.size(); ++r) {  // All ranks find the same.
    RendezvousInfo info;
    if (infos[r].size() != sizeof info)
      internal::failf(Errc::backend, "local: the store holds {} bytes of rank {}; expected {}",
                      infos[r].size(), r, sizeof info);
    std::memcpy(&info, infos[r].data(), sizeof info);
    if (r == 0) first = info;
    if (info.process != first.process || info.token != first.token)
      internal::failf(
          Errc::unsupported,
          "local: its ranks are threads of one process, but rank 0 is process {} and rank "
          "{} is process {}; choose a backend for processes",
          first.process, r, info.process);
  }
  if (init.rank != 0) shared = SharedStates::of_process().find(first.shared);
  if (shared == nullptr)
    internal::failf(Errc::timeout, "group '{}': rank 0 of {} left before this rank joined",
                    init.name, init.size);
  return shared;
}

class LocalBackend final : public HostBackend {
 public:
  explicit LocalBackend(const BackendInit& init)
      : LocalBackend(init, internal::GroupNames(init.name, init.whole)) {}
  LocalBackend(const BackendInit& init, const internal::GroupNames& names)
      : HostBackend(names.group(), init.rank, names(init.rank)),
        memory_(init.memory == nullptr ? &host_memory() : init.memory) {
    internal::Rendezvous rendezvous(init);
    shared_ = find_shared_state(init, rendezvous);
    shared_->join(init.rank, rendezvous.limit());
  }
  ~LocalBackend() override {
    shared_->leave(rank());
    stop();
  }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    return operation == Operation::recv_any || HostBackend::supports(operation, dtype, kind);
  }
  Memory& memory() noexcept override { return *memory_; }

  void abort(std::string_view why) noexcept override {
    const Error cause(Errc::aborted,
                      fmt::format("rank {} aborted the group: {}", shown_rank(), why),
                      {.rank = shown_rank()});
    shared_->break_with(cause);
    fail_queued(shared_->cause().value_or(cause));
  }
  std::optional<Error> failure() const override { return shared_->cause(); }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    const int size = shared_->size();
    const auto entered = shared_->enter(rank(), ops, call, inlined_array(ops, rank(), size));
    if (entered.inlined()) return execute(entered, 0, rank(), size);
    const auto count = entered.collectives();
    for (std::size_t k = 0; k < count; ++k) {
      try {
        execute(entered, k, rank(), size);
      } catch (...) {
        shared_->fail_step(rank(), ops, call, internal::to_error(std::current_exception()));
      }
      if (const auto error = shared_->finish_step(rank())) throw Error(*error);
    }
  }

  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    // A message keeps the shared state alive, which contains the mailbox.
    auto message = calls().make_state<internal::Mailbox::Message>(
        std::shared_ptr<internal::Mailbox>(shared_, &shared_->mailbox()), op, limit);
    shared_->mailbox().post(message, rank(), call);
    return message;
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
      if (part.size() == 1 && is_point_to_point(part[0].kind))
        shared_->mailbox().refuse(part[0], rank(), why);
      else
        shared_->refuse(rank(), part, its, why);
    });
  }

 private:
  Memory* memory_;
  std::shared_ptr<SharedState> shared_;
};

std::string details() {
  return internal::describe_polling(std::thread::hardware_concurrency()) +
         fmt::format("arrays of up to {} bytes are in the entries of a call\n", inline_bytes);
}

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
    .details = details,
    .receives_from_any = true,
};

}  // namespace tutti::backend::local
