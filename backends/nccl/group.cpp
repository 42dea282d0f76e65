#include "group.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "cuda/memory.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

Settings settings_of(const BackendInit& init) {
  try {
    auto settings = Settings::of(init.args);
    settings.name = init.name;
    return settings;
  } catch (const Error& error) {
    throw internal::Rendezvous(init).give_up(error);  // Ends the creation on the peers too.
  }
}

}  // namespace

std::shared_ptr<Group> Group::make(const BackendInit& init, const Apis& apis) {
  auto group = std::make_shared<Group>(init, apis);
  try {
    group->watcher_.start(group);
  } catch (const Error& error) {
    throw group->connection_.give_up(error);
  }
  return group;
}

Group::Group(const BackendInit& init, const Apis& apis)
    : init_(init),
      gpu_(std::make_shared<Gpu>(apis, init.device.index, settings_of(init))),
      memory_(init.memory == nullptr ? cuda::cuda_memory(*apis.cuda, init.device.index)
                                     : *init.memory),
      scratch_(init.memory == nullptr ? cuda::scratch_memory(*apis.cuda, init.device.index)
                                      : std::shared_ptr<Memory>(std::shared_ptr<void>(), &memory_)),
      pinned_(cuda::pinned_pool(*apis.cuda, init.device.index)),
      order_(std::make_shared<internal::CallQueue>()),
      store_(make_prefix_store(init.store, "nccl/")),
      failure_(init_, order_),
      history_(init_.name, init_.rank),
      connection_(gpu_, init_),
      launcher_(gpu_, init_, *scratch_, failure_, connection_.communicator()),
      messages_(gpu_, *store_, memory_, init.rank, failure_),
      registrations_(gpu_, init_, memory_, connection_.communicator(), launcher_, failure_),
      watcher_(gpu_, init_, connection_.communicator(), launcher_, messages_, failure_, history_) {
  failure_.on_break([this] { watcher_.wake(); });
  try {
    const auto limit = Deadline::after(init.timeout);
    connection_.open(limit);
    launcher_.prepare();
    warm_up(limit);
  } catch (const Error& error) {
    throw connection_.give_up(error);
  }
}

/// Makes a first call, in which NCCL connects the ranks and blocks until all of them have made it.
/// Otherwise the first async call would block.
void Group::warm_up(Deadline limit) {
  const Op op{.kind = Operation::barrier};
  const Call call{.stream = launcher_.stream(), .deadline = limit};
  const auto state = make_state({&op, 1}, call, limit);
  launcher_.launch({&op, 1}, state);
  const auto check_peers = [this] { connection_.check_peers(); };
  cuda::await(
      limit, late_in_nccl, [&] { return launcher_.advance(); }, check_peers);
  const auto ended = [&] {
    connection_.communicator()->look();
    return state->poll();
  };
  cuda::await(limit, "the deadline passed before the first call between the ranks ended", ended,
              check_peers);
  if (const auto error = state->error()) std::rethrow_exception(error);
}

std::shared_ptr<EventState> Group::make_state(std::span<const Op> ops, const Call& call,
                                              Deadline limit) {
  return std::make_shared<EventState>(order_, gpu_, ops, call, limit);
}

Work Group::launch(std::span<const Op> ops, const Call& call) {
  failure_.require_intact();
  const bool numbered = internal::has_collective(ops) || call.in_order;
  bool captured = false;
  const Deadline limit = call.limit();
  std::vector<Work> works;
  std::optional<DeviceScope> scope;  // One query of the device for all of the call.
  try {
    scope.emplace(gpu_->cuda(), gpu_->index());
    captured = launcher_.check_call(ops, call);
    if (!call.in_order) post(ops, call, limit, works);
  } catch (...) {
    refuse(ops, call, internal::to_error(std::current_exception()));
    throw;
  }
  std::shared_ptr<EventState> state;
  if (numbered) {
    std::optional<internal::CallQueue::Turn> turn;
    try {
      turn.emplace(*order_, call);
    } catch (const Error& error) {
      // A call that never got its turn breaks the order of the calls.
      if (error.code() == Errc::timeout)
        failure_.fail(
            internal::call_error(error.code(), init_.name, ops, call, init_.rank, error.message()));
      throw;
    }
    if (call.in_order) post(ops, call, limit, works);
    state = run(ops, call, limit, captured);
  }
  if (state != nullptr) {
    if (call.blocking && ops.size() == 1 && ops[0].kind == Operation::barrier) {
      state->wait_until(Deadline::none());  // The Watcher ends the call by its deadline.
      if (const auto error = state->error()) std::rethrow_exception(error);
      return {};
    }
    works.emplace_back(state);
    if (call.blocking) state->join();  // If it throws, the Work waits for the call.
  }
  return works.size() == 1 ? std::move(works.front()) : Work::all(works);
}

void Group::post(std::span<const Op> ops, const Call& call, Deadline limit,
                 std::vector<Work>& works) {
  for (const auto& op : ops) {
    if (!is_message(op, call)) continue;
    const auto state = make_state({&op, 1}, call, limit);
    try {
      messages_.post(state);
    } catch (...) {
      const Error error = internal::to_error(std::current_exception());
      failure_.fail(internal::call_error(error.code(), init_.name, {&op, 1}, call, init_.rank,
                                         error.message()));
      throw failure_.await_error_of(op, call);
    }
    watcher_.watch(state);
    works.emplace_back(state);
  }
}

std::shared_ptr<EventState> Group::run(std::span<const Op> all, const Call& call, Deadline limit,
                                       bool captured) {
  std::vector<Op> ops;
  std::ranges::copy_if(all, std::back_inserter(ops),
                       [&](const Op& op) { return !is_message(op, call); });
  if (ops.empty()) return nullptr;
  const auto state = make_state(ops, call, limit);
  if (captured) {
    state->capture();
    watcher_.watch_graphs();  // Before the launch, in which NCCL may block for a peer that aborts.
  }
  try {
    next_ = std::max<std::uint64_t>(next_, call.seq + 1);
    (void)history_.begin(ops, call);
    launcher_.launch(ops, state);
  } catch (...) {
    const Error error = internal::to_error(std::current_exception());
    if (error.code() == Errc::timeout)
      failure_.fail_late(ops[0], call, state->since());
    else
      failure_.fail(
          internal::call_error(error.code(), init_.name, ops, call, init_.rank, error.message()));
    throw failure_.await_error_of(ops[0], call);
  }
  if (captured) return state;
  watcher_.watch(state);
  const auto counts = [](const Op& op) { return op.kind == Operation::all_gather_bounded; };
  if (call.blocking && std::ranges::any_of(ops, counts)) launcher_.await_rows();
  return state;
}

void Group::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  bool told = false;  // The collectives are refused once.
  for (const auto& op : ops) {
    const bool message = is_message(op, call);
    if (!message && std::exchange(told, true)) continue;
    failure_.agreement().refusals().add(
        {failure_.id_of(op, call), init_.rank,
         fmt::format("{} #{}: {}", name_of(op.kind), message ? op.seq : call.seq, why.message())});
  }
  if (call.in_order || internal::has_collective(ops)) order_->skip(call.seq);
}

void Group::abort(std::string_view why) noexcept {
  failure_.fail(Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", init_.rank, why),
                      {.group = init_.name, .rank = init_.rank}));
}

void Group::leave() noexcept {
  if (!watcher_.stop()) return;
  order_->stop();
  if (failure_.is_broken()) return;
  const auto all = watcher_.communicators();
  // Aborts an adopted communicator if a peer has failed, because the program may go on using it.
  // Asks the store, because the Watcher does not poll while no call is in flight.
  if (init_.adopt && failure_.agreement().cause({})) return (void)abort_all(all);
  registrations_.end_all();
  failure_.agreement().leave(next_);
  if (connection_.communicator()->is_held())
    init_.logger(
        LogLevel::warning,
        fmt::format("group '{}' ends before the CUDA graphs with its calls; NCCL keeps its "
                    "communicator until they are destroyed",
                    init_.name));
  end_all(all, init_.timeout);
}

}  // namespace tutti::backend::nccl
