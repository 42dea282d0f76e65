#include "receives.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <thread>

#include <fmt/format.h>

#include "backend/agreement.hpp"
#include "backend/record.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::mesh {
namespace {

/// The pauses of a thread that looks for sends. No transport reports one that no receive has taken.
class PauseOfReceives {
 public:
  void operator()() {
    if (++count_ <= yields) return std::this_thread::yield();
    std::this_thread::sleep_for(time_);
    time_ = std::min(2 * time_, longest);
  }

 private:
  static constexpr int yields = 50;
  static constexpr std::chrono::microseconds longest{1000};
  int count_ = 0;
  std::chrono::microseconds time_{20};
};

}  // namespace

void QueuedReceive::become(std::shared_ptr<WorkState> message) {
  bool follows = false;
  {
    const std::lock_guard lock(message_mutex_);
    message_ = std::move(message);
    follows = follows_;
  }
  if (follows) follow();
}

std::shared_ptr<WorkState> QueuedReceive::message() const noexcept {
  const std::lock_guard lock(message_mutex_);
  return message_;
}

bool QueuedReceive::done() const noexcept {
  if (HostState::done()) return true;
  auto m = message();
  if (m == nullptr && !forked()) {
    (void)receives_->progress();
    m = message();
  }
  return HostState::done() || (m != nullptr && m->done());
}

bool QueuedReceive::wait_until(Deadline deadline) {
  for (PauseOfReceives pause;; pause()) {
    if (HostState::done() || forked()) return true;
    if (const auto m = message()) return m->wait_until(deadline);
    (void)receives_->progress();  // Ends this at its own limit.
    if (message() == nullptr && deadline.expired()) return HostState::done();
  }
}

std::exception_ptr QueuedReceive::error() const noexcept {
  const auto m = message();
  return m == nullptr || HostState::done() ? HostState::error() : m->error();
}

void QueuedReceive::follow() {
  const auto m = message();
  if (m == nullptr || forked()) return;
  auto self = std::static_pointer_cast<QueuedReceive>(shared_from_this());
  (void)m->on_done([self = std::move(self), m](const Error*) { self->finish(m->error()); });
}

std::shared_ptr<WorkState> QueuedReceive::then(std::function<void()> next) {
  auto after = HostState::then(std::move(next));
  {
    const std::lock_guard lock(message_mutex_);
    if (std::exchange(follows_, true)) return after;
  }
  follow();
  return after;
}

std::shared_ptr<WorkState> QueuedReceive::on_done(std::function<void(const Error*)> f) {
  auto after = HostState::on_done(std::move(f));
  {
    const std::lock_guard lock(message_mutex_);
    if (std::exchange(follows_, true)) return after;
  }
  follow();
  return after;
}

bool QueuedReceive::withdraw(const Error& why) noexcept {
  if (receives_->withdraw(*this)) {
    finish(std::make_exception_ptr(why));
    return true;
  }
  const auto m = message();
  return m == nullptr || m->withdraw(why);
}

/// A receive from any rank as errors show it.
struct Receives::Shown {
  Op shown;
  std::string text;  // MessageCall::text.
};

/// Stands for the send of one rank that a receive from any rank may take, in the mesh's list: peers
/// compare it with theirs, may refuse it, and may be lost. Moves no bytes.
class Receives::Candidate final : private Shown, public Message {
 public:
  /// `any`: the receive, with the number of the send of rank `from`.
  Candidate(const Group& group, int from, const Op& any, const std::string& named)
      : Candidate(group, from, any, with_peer(any, from), named) {}
  ~Candidate() override {
    leave();
    calls_.posted.remove(id_);
  }

  int from() const noexcept { return from_; }
  /// Its outcome before the peer's send has been found; empty: none.
  std::optional<TransportError> failure() const {
    if (failure_) return failure_;
    const bool ended = cancelled_.load(std::memory_order_relaxed) || !mesh_.is_up();
    return ended ? std::optional(cancelled()) : std::nullopt;
  }
  bool is_sent() const { return mesh_.is_sent(peer(), slot_); }

  void send(std::uint64_t) override {}
  void recv(std::uint64_t, bool) override {}
  void wait(Deadline) override {}
  void cancel() noexcept override {
    // Relaxed: no data depends on the flag, which is looked at again and again.
    cancelled_.store(true, std::memory_order_relaxed);
  }

 private:
  static Op with_peer(Op op, int from) {
    op.peer = from;
    return op;
  }
  Candidate(const Group& group, int from, const Op& any, const Op& its, const std::string& named)
      : Shown{any, named},
        Message(*group.mesh, group.mesh_rank(from),
                {.id = group.pair_id(its),
                 .group = group.calls.get(),
                 .ops = {&shown, 1},
                 .text = text}),
        mesh_(*group.mesh),
        calls_(*group.calls),
        from_(from),
        id_(group.pair_id(its)),
        slot_(group.pair_slot(its)) {
    calls_.posted.add(id_, any);
    try {
      enlist();
    } catch (const TransportError& error) {
      failure_ = error;
    }
  }

  Mesh& mesh_;
  GroupCalls& calls_;
  int from_;
  std::uint64_t id_;
  std::uint64_t slot_;
  std::optional<TransportError> failure_;
  std::atomic<bool> cancelled_{false};
};

Receives::Receives(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
                   std::shared_ptr<internal::Mailbox> to_itself,
                   std::weak_ptr<WaiterThreads> waiter_threads, Post post)
    : queue_(std::move(queue)),
      group_(std::move(group)),
      to_itself_(std::move(to_itself)),
      waiter_threads_(std::move(waiter_threads)),
      post_(std::move(post)) {}

void Receives::number_now(Op& op) {
  auto& sends = sends_[{op.peer, op.tag}];
  sends.named = std::max(sends.named, op.seq + 1);
  op.seq += sends.any;
}

bool Receives::number(Op& op) {
  const std::lock_guard lock(mutex_);
  if (lines_.contains(op.tag)) return false;
  number_now(op);
  return true;
}

std::shared_ptr<WorkState> Receives::add(const Op& op, Deadline limit, bool waited_for,
                                         std::string text) {
  auto state = std::make_shared<QueuedReceive>(queue_, shared_from_this());
  enter({.op = op, .limit = limit, .state = state, .text = std::move(text)}, waited_for);
  return state;
}

void Receives::refuse(const Op& op, Deadline limit, const Error& why) {
  enter({.op = op, .limit = limit, .why = why}, false);
}

void Receives::enter(Entry entry, bool waited_for) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(internal::group_destroyed());
    lines_[entry.op.tag].entries.push_back(std::move(entry));
  }
  if (!progress() || waited_for) return;
  const auto threads = waiter_threads_.lock();
  {
    const std::lock_guard lock(mutex_);
    if (lines_.empty() || threads == nullptr || std::exchange(driven_, true)) return;
  }
  try {
    threads->run([self = shared_from_this()] { self->drive(); });
  } catch (...) {  // A thread that waits, or asks for done(), looks for the send.
    const std::lock_guard lock(mutex_);
    driven_ = false;
  }
}

void Receives::drive() {
  for (PauseOfReceives pause;; pause()) {
    (void)progress();
    const std::lock_guard lock(mutex_);
    if (!closed_ && !lines_.empty()) continue;
    driven_ = false;
    return;
  }
}

bool Receives::progress() noexcept {
  for (;;) {
    std::optional<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      try {
        entry = next();
      } catch (...) {  // Without memory: later.
        return true;
      }
      if (!entry) return !lines_.empty();
      if (entry->op.peer == group_->rank && !entry->failure) {
        apply(*entry);  // Before another receive is shown the same send.
        continue;
      }
      ++active_;
    }
    apply(*entry);
    const std::lock_guard lock(mutex_);
    if (--active_ == 0) idle_.notify_all();
  }
}

/// Takes a receive that is to be posted, or that has ended.
std::optional<Receives::Entry> Receives::next() {
  for (auto at = lines_.begin(); at != lines_.end();) {
    auto& line = at->second;
    auto found = expired(line);
    if (!found && !line.entries.empty() && resolve(line)) {
      drop_candidates(line);
      found = std::move(line.entries.front());
      line.entries.pop_front();
    }
    at = line.entries.empty() ? lines_.erase(at) : std::next(at);
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<Receives::Entry> Receives::expired(Line& line) {
  const auto late =
      std::ranges::find_if(line.entries, [](const Entry& e) { return e.limit.expired(); });
  if (late == line.entries.end()) return std::nullopt;
  if (late == line.entries.begin()) drop_candidates(line);
  std::optional<Entry> entry(std::move(*late));
  line.entries.erase(late);
  entry->failure.emplace(TransportError::Kind::late, group_->mesh->rank());
  return entry;
}

void Receives::drop_candidates(Line& line) noexcept {
  line.candidates.clear();
}

void Receives::look_for_sends(Line& line) {
  const auto& op = line.entries.front().op;
  const auto& text = line.entries.front().text;
  std::vector<std::shared_ptr<Candidate>> candidates;
  for (int i = 0; i < group_->size(); ++i) {
    const int from = (first_ + i) % group_->size();
    if (from == group_->rank) continue;
    const auto& sends = sends_[{from, op.tag}];
    Op its = op;
    its.seq = sends.named + sends.any;
    candidates.push_back(std::make_shared<Candidate>(*group_, from, its, text));
  }
  line.candidates = std::move(candidates);
}

/// True if the first receive can be posted, or has ended. Sets its peer and number.
bool Receives::resolve(Line& line) {
  auto& entry = line.entries.front();
  auto& op = entry.op;
  if (op.peer != any_peer) {
    number_now(op);
    return true;
  }
  if (to_itself_->has_send(group_->rank, op.tag)) {
    op.peer = group_->rank;
    return true;
  }
  if (line.candidates.empty() && group_->size() > 1) look_for_sends(line);
  const auto found = std::ranges::find_if(
      line.candidates, [](const auto& c) { return c->failure() || c->is_sent(); });
  if (found == line.candidates.end()) return false;
  entry.failure = (*found)->failure();
  if (entry.failure && entry.failure->kind != TransportError::Kind::refused) return true;
  op.peer = (*found)->from();
  auto& sends = sends_[{op.peer, op.tag}];
  op.seq = sends.named + sends.any++;
  first_ = (op.peer + 1) % group_->size();
  return true;
}

void Receives::apply(Entry& entry) noexcept {
  try {
    if (entry.failure) return end(entry);
    if (entry.state == nullptr) {
      if (entry.op.peer == group_->rank)
        return to_itself_->refuse(entry.op, group_->rank, *entry.why);
      return group_->mesh->agreement().refusals().add(
          {.call = group_->pair_id(entry.op),
           .rank = group_->mesh->rank(),
           .text = internal::refusal_text({&entry.op, 1}, {}, *entry.why),
           .entered = false});
    }
    if (entry.op.source != nullptr) *entry.op.source = entry.op.peer;
    entry.op.source = nullptr;
    entry.state->become(post_(entry.op, entry.limit, entry.text));
  } catch (...) {
    if (entry.state != nullptr) entry.state->finish(std::current_exception());
  }
}

void Receives::end(Entry& entry) noexcept {
  if (entry.state == nullptr) return;
  const auto& op = entry.op;
  const bool late = entry.failure->kind == TransportError::Kind::late;
  if (!late || op.peer != any_peer) {
    if (late) entry.failure->peer = group_->mesh_rank(op.peer);
    entry.state->finish(std::make_exception_ptr(group_->failed(*entry.failure, {&op, 1}, {})));
    return;
  }
  const auto& names = group_->names;
  const Error error = internal::call_error(Errc::timeout, names, {&op, 1}, {}, -1, [&] {
    return fmt::format("the deadline passed; no rank has made its side of {}",
                       internal::describe(op, names));
  });
  const auto cause = group_->mesh->fail({.cause = error, .names = names});
  entry.state->finish(
      std::make_exception_ptr(internal::ended_by(group_->in_own_ranks(cause), error.where())));
}

bool Receives::withdraw(const QueuedReceive& receive) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto at = lines_.begin(); at != lines_.end(); ++at) {
    auto& entries = at->second.entries;
    const auto found =
        std::ranges::find_if(entries, [&](const Entry& e) { return e.state.get() == &receive; });
    if (found == entries.end()) continue;
    if (found == entries.begin()) drop_candidates(at->second);
    entries.erase(found);
    if (entries.empty()) lines_.erase(at);
    return true;
  }
  return false;
}

bool Receives::close(const Error& why) noexcept {
  std::map<int, Line> lines;
  {
    std::unique_lock lock(mutex_);
    closed_ = true;
    idle_.wait(lock, [&] { return active_ == 0; });
    lines.swap(lines_);
  }
  bool any = false;
  for (auto& [tag, line] : lines) {
    line.candidates.clear();
    for (auto& entry : line.entries) {
      if (entry.state == nullptr) continue;
      any = true;
      entry.state->finish(std::make_exception_ptr(why));
    }
  }
  return any;
}

}  // namespace tutti::backend::mesh
