#include "backend.hpp"

#include <algorithm>
#include <list>
#include <memory_resource>
#include <new>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "backend/fingerprint.hpp"
#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "collectives/algorithms.hpp"
#include "values/current_error.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::mesh {

/// The messages of one collective of a group.
class CallWire final : public collectives::Wire {
 public:
  /// The messages of operation `index` of the call. `before`: CallHistory::before().
  CallWire(const Group& group, std::span<const Op> ops, const Call& call, std::size_t index,
           std::uint64_t before, internal::Scratch& scratch, std::pmr::memory_resource& pool)
      : group_(group),
        call_{group.call_id(call), group.calls.get(), ops, &call},
        slot_(group.slot(call, index, before)),
        limit_(call.limit()),
        scratch_(scratch),
        pool_(pool),
        sends_(&pool),
        recvs_(&pool) {}

  int rank() const noexcept override { return group_.rank; }
  int size() const noexcept override { return group_.size(); }
  bool wakes_a_thread() const noexcept override { return group_.mesh->wakes_a_thread(); }
  void send(int to, const void* data, std::size_t bytes) override {
    // The memory is not const for the transports' interfaces. None writes to memory that it sends.
    add(sends_, to, const_cast<void*>(data), bytes).send(slot_);
  }
  void recv(int from, void* data, std::size_t bytes) override {
    add(recvs_, from, data, bytes).recv(slot_, true);
  }
  void recv_at_most(int from, void* data, std::size_t bytes) override {
    add(recvs_, from, data, bytes).recv(slot_, false);
  }
  void wait_recv() override {
    recvs_.front()->wait(limit_);
    recvs_.pop_front();
  }
  void wait_sends(std::size_t left) override {
    for (; sends_.size() > left; sends_.pop_front()) sends_.front()->wait(limit_);
  }
  std::byte* scratch(std::size_t bytes) override { return scratch_.at_least(bytes); }

 private:
  using Messages = std::pmr::list<std::shared_ptr<Message>>;  // Oldest first.

  Message& add(Messages& messages, int peer, void* data, std::size_t bytes) {
    return *messages.emplace_back(
        group_.mesh->message(pool_, group_.mesh_rank(peer), data, bytes, call_));
  }
  const Group& group_;
  MessageCall call_;
  std::uint64_t slot_;
  Deadline limit_;
  internal::Scratch& scratch_;
  std::pmr::memory_resource& pool_;
  Messages sends_;
  Messages recvs_;
};

MeshBackend::MeshBackend(std::shared_ptr<const Group> group, Memory& memory)
    : HostBackend(group->names.group(), group->rank, group->names(group->rank)),
      memory_(memory),
      group_(std::move(group)),
      to_itself_(std::make_shared<internal::Mailbox>(
          group_->names, group_->size(),
          [group = group_](const Error& why) { group->mesh->fail({.cause = why}); })),
      waiter_threads_(std::make_shared<WaiterThreads>()),
      receives_(std::make_shared<Receives>(calls().queue(), group_, to_itself_, waiter_threads_,
                                           [this](const Op& op, Deadline limit, std::string text) {
                                             return post_pair(op, {}, limit, std::move(text));
                                           })),
      listener_(std::make_shared<const Mesh::Listener>(
          [queue = calls().queue(), box = to_itself_, group = group_](const Error& cause) {
            const auto own = group->in_own_ranks(cause);
            queue->fail(own);
            box->fail(own);
          })) {
  calls().leave_parts = [this](const Call& call, const Error& why) {
    return leave_parts(call, why);
  };
  calls().fail_with = [this](const Error& why) {
    (void)mesh().fail({.cause = group_->in_mesh_ranks(why)});
  };
  mesh().listen(listener_);
  if (group_->calls != nullptr) mesh().add_calls(group_->calls);
}

MeshBackend::~MeshBackend() {
  bool pending = receives_->close(internal::group_destroyed());
  std::vector<std::weak_ptr<PairState>> pairs;
  {
    const std::lock_guard lock(pairs_mutex_);
    pairs.swap(pairs_);
  }
  for (const auto& weak : pairs)
    if (const auto pair = weak.lock()) pending = pair->cancel() || pending;
  to_itself_->fail(internal::group_destroyed());
  // The transport cannot cancel a posted message, so the other groups of the mesh fail too.
  if (pending && !alone_on_mesh()) abandon_messages();
  stop();
  if (group_->calls != nullptr) mesh().end_calls(*group_->calls);
}

std::unique_ptr<Backend> MeshBackend::split(const SplitInit& init) {
  auto part = std::make_shared<Group>();
  part->name = init.name;
  part->names = {init.name, init.whole};
  part->rank = init.rank;
  if (init.ranks.size() == 1) {
    part->mesh = mesh_of_one();
    part->ranks = {0};
  } else {
    part->mesh = group_->mesh;
    for (const int r : init.ranks) part->ranks.push_back(group_->mesh_rank(r));
    part->remember_calls();
  }
  return std::make_unique<MeshBackend>(std::move(part), memory_);
}

void MeshBackend::abort(std::string_view why) noexcept {
  mesh().fail({.cause = internal::described(Errc::aborted, [&] {
                 return Error(Errc::aborted,
                              fmt::format("rank {} aborted the group: {}", shown_rank(), why),
                              {.group = group(), .rank = shown_rank()});
               })});
}

std::optional<Error> MeshBackend::failure() const {
  const auto cause = mesh().cause();
  return cause ? std::optional(group_->in_own_ranks(*cause)) : std::nullopt;
}

void MeshBackend::run(std::span<const Op> ops, const Call& call) {
  std::optional<CallWire> wire;  // Destroyed after failed() has returned.
  // Counts collectives only, because ranks may have different numbers of sends and receives.
  std::size_t index = 0;
  // A peer's, of another group of the mesh: this group's queue may learn of it later.
  if (mesh().is_broken() && mesh().cause()->code() != Errc::peer_lost)
    throw Error(internal::broken(*failure(), group()));
  try {
    // Messages of the parts before this one may still use the memory of the group.
    if (group_->names.is_part() &&
        mesh().agreement().refusals().of(group_->call_id(call)) != nullptr)
      throw TransportError(TransportError::Kind::refused, mesh().rank());
    const auto before = group_->calls == nullptr ? 0 : group_->calls->begin(ops, call);
    for (const auto& op : ops) {
      if (is_point_to_point(op.kind)) continue;
      wire.emplace(*group_, ops, call, index++, before, scratch_, calls().pool());
      collectives::run_collective(*wire, op, call.order_fixed);
    }
  } catch (const TransportError& transport_error) {
    const Error error = group_->failed(transport_error, ops, call);
    // The next call has to find the group broken; the thread that broke the mesh tells it later.
    if (const auto cause = mesh().cause()) (*listener_)(*cause);
    if (group_->names.is_part() && wire && transport_error.kind == TransportError::Kind::refused)
      ended_parts_.push_back(std::move(*wire));
    throw Error(error);
  } catch (...) {
    // From a custom reduction, the counts of an all_to_all differ, or no memory. Fails the mesh,
    // because the peers wait for this rank's messages.
    const Error error = internal::to_error(std::current_exception());
    throw Error(mesh().fail(
        {.cause = internal::call_error(error.code(), group_->names, ops, call, rank(), [&] {
           return fmt::format("rank {}: {}", shown_rank(), error.message());
         })}));
  }
}

std::shared_ptr<WorkState> MeshBackend::post_one(const Op& op, const Call& call, Deadline limit) {
  Op numbered = op;
  const bool receives = op.kind == Operation::recv;
  if (receives && (op.peer == any_peer || !receives_->number(numbered)))
    return receives_->add(op, limit, call.blocking, text_of(op, call));
  return post_pair(numbered, call, limit, text_of(op, call));
}

std::string MeshBackend::text_of(const Op& op, const Call& call) const {
  return call.name.empty() ? "" : internal::describe({&op, 1}, call, group_->names);
}

std::shared_ptr<WorkState> MeshBackend::post_pair(const Op& op, const Call& call, Deadline limit,
                                                  std::string text) {
  if (op.peer == rank()) {
    auto message = calls().make_state<internal::Mailbox::Message>(to_itself_, op, limit);
    to_itself_->post(message, rank(), call);
    return message;
  }
  auto state = calls().make_state<PairState>(group_, waiter_threads_, op, limit, std::move(text));
  {
    const std::lock_guard lock(pairs_mutex_);
    group_->calls->posted.add(group_->pair_id(op), op);
    if (pairs_.size() == pairs_.capacity())
      std::erase_if(pairs_, [](const auto& pair) { return pair.expired(); });
    pairs_.push_back(state);
  }
  state->post();
  return state;
}

void MeshBackend::publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
    const bool message = part.size() == 1 && is_point_to_point(part[0].kind);
    try {
      if (message) return publish_message(part[0], its, why);
      if (group_->size() == 1) return;
      mesh().agreement().refusals().add({.call = group_->call_id(its),
                                         .rank = mesh().rank(),
                                         .text = internal::refusal_text(part, its, why),
                                         .entered = group_->names.first_part(its.seq) != its.seq});
    } catch (...) {  // The peers wait, and cannot be told of the refusal.
      mesh().fail({.cause = internal::to_error(std::current_exception())});
    }
  });
}

void MeshBackend::publish_message(const Op& op, const Call& call, const Error& why) {
  Op numbered = op;
  if (op.kind == Operation::recv && (op.peer == any_peer || !receives_->number(numbered))) {
    internal::Hash hash;  // The call was refused before it got a fingerprint.
    internal::add(hash, numbered);
    numbered.fingerprint = internal::finish_hash(hash, call);
    return receives_->refuse(numbered, call.limit(), why);
  }
  if (op.peer == rank()) return to_itself_->refuse(numbered, rank(), why);
  if (group_->size() == 1) return;
  mesh().agreement().refusals().add({.call = group_->pair_id(numbered),
                                     .rank = mesh().rank(),
                                     .text = internal::refusal_text({&op, 1}, call, why),
                                     .entered = group_->names.first_part(call.seq) != call.seq});
}

bool MeshBackend::leave_parts(const Call& call, const Error& why) noexcept {
  const bool left = group_->size() == 1 || (!failure() && group_->abandon(call));
  if (!left) mesh().fail({.cause = internal::broken_by_refusal(why)});
  ended_parts_.clear();
  return left;
}

void MeshBackend::abandon_messages() noexcept {
  Error cause = internal::group_destroyed();
  try {
    cause = Error(Errc::aborted,
                  fmt::format("rank {} destroyed the group while a send or receive was in progress",
                              shown_rank()),
                  {.group = group(), .rank = shown_rank()});
  } catch (const std::bad_alloc&) {  // The cause then has no rank.
  }
  mesh().fail({.cause = cause});
}

std::shared_ptr<const Group> whole_group(const BackendInit& init, std::shared_ptr<Mesh> mesh) {
  auto group = std::make_shared<Group>();
  group->mesh = std::move(mesh);
  group->name = init.name;
  group->names = {init.name, init.whole};
  group->rank = init.rank;
  group->ranks.resize(static_cast<std::size_t>(init.size));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  if (init.size > 1) group->remember_calls();
  return group;
}

std::unique_ptr<Backend> make_backend(const BackendInit& init, std::shared_ptr<Mesh> mesh) {
  return std::make_unique<MeshBackend>(whole_group(init, std::move(mesh)),
                                       init.memory == nullptr ? host_memory() : *init.memory);
}

}  // namespace tutti::backend::mesh
