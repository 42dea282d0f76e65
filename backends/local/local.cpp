// The backend local: ranks are threads of one process (docs/design/host-backends.md).

#include <unistd.h>

#include <chrono>
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
#include "memory/collectives.hpp"
#include "memory/thresholds.hpp"
#include "shared_state.hpp"
#include "values/bytes.hpp"
#include "values/cores.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::backend::local {
namespace {

using namespace std::chrono_literals;

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
  internal::Cores cores;  ///< Of the rank's thread.
};

Bytes encode(const RendezvousInfo& info) {
  internal::Writer out;
  out.u64(info.process).u64(info.token).u64(info.shared);
  write(out, info.cores);
  return out.take();
}

RendezvousInfo decode(const Bytes& bytes, std::size_t rank) {
  const auto what = fmt::format("local: the description of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  RendezvousInfo info;
  info.process = in.u64();
  info.token = in.u64();
  info.shared = in.u64();
  info.cores = internal::read_cores(in);
  in.end();
  return info;
}

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

/// Sets `cores` to the number of cores that all ranks may use together.
std::shared_ptr<SharedState> find_shared_state(const BackendInit& init,
                                               internal::Rendezvous& rendezvous,
                                               std::size_t& cores) {
  std::shared_ptr<SharedState> shared;
  RendezvousInfo mine{static_cast<std::uint64_t>(::getpid()), process_token(), 0,
                      internal::usable_cores()};
  if (init.rank == 0) {
    shared = std::make_shared<SharedState>(internal::GroupNames(init.name, init.whole), init.size);
    mine.shared = SharedStates::of_process().add(shared);
  }
  const auto infos = rendezvous.exchange("local", encode(mine));
  RendezvousInfo first;
  std::vector<internal::Cores> all;
  for (std::size_t r = 0; r < infos.size(); ++r) {  // All ranks find the same.
    const auto info = decode(infos[r], r);
    if (r == 0) first = info;
    if (info.process != first.process || info.token != first.token)
      internal::failf(
          Errc::unsupported,
          "local: its ranks are threads of one process, but rank 0 is process {} and rank "
          "{} is process {}; choose a backend for processes",
          first.process, r, info.process);
    all.push_back(info.cores);
  }
  cores = internal::count_cores(all);
  if (init.rank != 0) shared = SharedStates::of_process().find(first.shared);
  // Rank 0 may have given up, and tells why in a moment.
  for (const auto soon = Deadline::after(1s); shared == nullptr && !soon.expired();
       std::this_thread::sleep_for(1ms))
    rendezvous.check();
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
        memory_(init.memory == nullptr ? host_memory() : *init.memory) {
    internal::Rendezvous rendezvous(init);
    memory::Membership made(init.size);
    shared_ = find_shared_state(init, rendezvous, made.cores);
    made.memory = shared_->memory();
    made.processes.resize(static_cast<std::size_t>(init.size));
    member_ = std::make_shared<memory::Member>(init, std::move(made));
    member_->on_failure(
        [queue = calls().queue(), weak = std::weak_ptr<SharedState>(shared_)](const Error& cause) {
          queue->fail(cause);
          if (const auto shared = weak.lock()) shared->mailbox().fail(cause);
        });
    shared_->join(member_, rendezvous);
  }
  ~LocalBackend() override {
    member_->leave();
    shared_->mailbox().leave(rank());
    stop();
  }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    return operation == Operation::recv_any || HostBackend::supports(operation, dtype, kind);
  }
  bool reproduces() const noexcept override { return true; }
  Memory& memory() noexcept override { return memory_; }

  void abort(std::string_view why) noexcept override {
    (void)member_->fail(internal::described(Errc::aborted, [&] {
      return Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", shown_rank(), why),
                   {.rank = shown_rank()});
    }));
  }
  std::optional<Error> failure() const override { return member_->failure(); }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    memory::run_collectives(*member_, ops, call);
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
        member_->refuse(part, its, why);
    });
  }

 private:
  Memory& memory_;
  std::shared_ptr<SharedState> shared_;
  std::shared_ptr<memory::Member> member_;
};

std::string details() {
  return internal::describe_polling(internal::count_cores({internal::usable_cores()})) +
         memory::describe_thresholds();
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "local",
    .summary = "ranks are threads of one process",
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
