#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <span>
#include <system_error>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::shm {
namespace {

using namespace std::chrono_literals;

/// While messages are pending, the thread looks at the group's state this often.
constexpr std::chrono::nanoseconds pause_of_looks = 20ms;
std::vector<std::byte> payload_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Messages::Messages(std::shared_ptr<Member> member)
    : member_(std::move(member)), bell_(member_->message_bell(member_->rank())) {
  const int me = member_->rank();
  const auto capacity = member_->layout().ring_bytes();
  for (int r = 0; r < member_->size(); ++r)
    peers_.push_back({RingSender(member_->ring(me, r), capacity),
                      RingReceiver(member_->ring(r, me), capacity), member_->stopped_process()});
}

// --- Calls ---

void Messages::post(const std::shared_ptr<Message>& message, const Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) {
      message->finish(ended_by_cause(*message));
      return;
    }
    const auto& op = message->op();
    if (!call.name.empty()) message->text_ = internal::describe({&op, 1}, call, member_->names());
    start_thread();
    // From now on end() needs no memory for a pending message.
    ended_.reserve(ended_.size() + pending_.size() + 1);
    pending_.push_back(message);
    try {
      add(message);
    } catch (...) {  // The peer may have been told. drive() breaks the group.
      corrupt_ = internal::to_error(std::current_exception());
    }
    if (idle_) Member::ring_bell(bell_);  // From now on the thread has to look regularly.
    idle_ = false;
  }
  (void)drive();
}

void Messages::refuse(const Op& op, const Error& why) noexcept {
  std::unique_lock lock(mutex_);
  try {
    if (cause_) return;
    start_thread();
    const auto text = internal::refusal_text({&op, 1}, {}, why);
    if (op.kind == Operation::recv)
      match_receive({op.peer, op.tag, nullptr, text});
    else if (op.peer != member_->rank())
      put_text(op.peer, Frame::Kind::refused_send, ++last_id_, op.tag, text);
    else
      match_request(
          {op.peer, {.kind = Frame::Kind::refused_send, .tag = op.tag}, payload_of(text), nullptr});
  } catch (...) {  // The peer waits for an answer. drive() breaks the group.
    corrupt_ = internal::to_error(std::current_exception());
  }
  lock.unlock();
  (void)drive();
}

// --- Progress ---

bool Messages::drive() noexcept {
  bool moved = false;
  std::optional<Error> broken;
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!cause_ && !corrupt_) moved = move();
      broken = corrupt_;
    } catch (...) {  // Out of memory.
      broken = internal::to_error(std::current_exception());
    }
  }
  finish_ended();
  if (broken) fail(member_->fail(*broken));
  return moved;
}

/// Ends the complete messages without the lock, because a callback may run on this thread.
void Messages::finish_ended() noexcept {
  const auto next = [&]() -> std::optional<End> {
    const std::lock_guard lock(mutex_);
    if (ended_.empty()) return std::nullopt;
    std::optional<End> first(std::move(ended_.front()));
    ended_.erase(ended_.begin());
    return first;
  };
  while (const auto entry = next()) entry->message->finish(entry->error);
}

void Messages::start_thread() {
  if (thread_.joinable()) return;
  try {
    // The thread holds a reference: a callback on it may destroy the group.
    thread_ = std::thread([self = shared_from_this()] { self->work(); });
  } catch (const std::system_error& error) {
    internal::failf(Errc::resource_exhausted,
                    "shm: cannot start the thread of sends and receives: {}", error.what());
  }
}

void Messages::work() noexcept {
  for (;;) {
    if (drive()) continue;
    bool idle = false;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      idle = pending_.empty() &&
             std::ranges::all_of(peers_, [](const Peer& peer) { return peer.packets.empty(); });
      idle_ = idle;
      asleep_ = true;
      // Before the last look at the rings: a peer that adds a frame later sees this (see wake()).
      if (polling_ == 0) bell_.sleeps.store(1, std::memory_order_seq_cst);
    }
    if (!idle) look();
    // Acquire, before the last look at the rings, as in Member::await_asleep().
    const auto heard = bell_.bell.load(std::memory_order_acquire);
    bool stopped = false;
    {
      const std::lock_guard lock(mutex_);
      stopped = stop_ || (idle && !idle_);  // Or a message was posted meanwhile.
    }
    if (!stopped && !drive())
      internal::futex_wait(bell_.bell, heard, idle ? 1h : pause_of_looks,
                           internal::Sharing::processes);
    const std::lock_guard lock(mutex_);
    asleep_ = false;
    idle_ = false;
    // Relaxed, as in poll_for(): a peer that sees this late rings once too often.
    bell_.sleeps.store(0, std::memory_order_relaxed);
  }
}

/// Moves frames on the caller's thread for a while. Peers need not wake the thread meanwhile.
void Messages::poll_for(const Message& message) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (polling_++ == 0) bell_.sleeps.store(0, std::memory_order_relaxed);
  }
  (void)member_->polling().until([&] {
    (void)drive();
    return message.ended();
  });
  {
    const std::lock_guard lock(mutex_);
    // Sequentially consistent, before the look at the rings in drive(): see wake().
    if (--polling_ == 0 && asleep_) bell_.sleeps.store(1, std::memory_order_seq_cst);
  }
  (void)drive();  // Frames that came while no peer saw a sleeper.
}

/// Looks at deadlines and at the group's state.
void Messages::look() noexcept {
  if (member_->is_broken()) return fail(member_->cause());
  std::shared_ptr<Message> late;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        pending_, [](const auto& message) { return message->limit().expired(); });
    if (found != pending_.end()) late = *found;
  }
  if (late != nullptr) return expire(*late);  // Its error ends every other message of the group.
  try {
    if (const auto lost = find_lost()) fail(member_->fail(*lost));
  } catch (const std::bad_alloc&) {  // Looks again soon.
  }
}

/// The error of messages that need a rank which is no longer there.
std::optional<Error> Messages::find_lost() {
  std::vector<bool> left;
  for (int r = 0; r < member_->size(); ++r) left.push_back(member_->has_left(r));
  const int dead = member_->find_dead();
  (void)drive();  // After the looks: a rank that leaves has sent all its frames before.
  const std::lock_guard lock(mutex_);
  if (cause_ || pending_.empty()) return std::nullopt;
  for (int r = 0; r < member_->size(); ++r)
    if (needs(r))
      if (auto stopped = member_->find_stopped(r, peers_[static_cast<std::size_t>(r)].stopped))
        return stopped;
  for (int r = 0; r < member_->size(); ++r)
    if (left[static_cast<std::size_t>(r)] && needs(r)) return member_->left_error(r);
  if (is_alone(left) && std::ranges::any_of(receives_, [](const Receive& receive) {
        return receive.peer == any_peer && receive.message != nullptr;
      }))
    return Error(Errc::peer_lost, "all other ranks have left the group");
  if (dead >= 0) return dead_error(member_->names(), dead);
  return std::nullopt;
}

bool Messages::needs(int rank) const {
  const auto& peer = peers_[static_cast<std::size_t>(rank)];
  return !peer.sends.empty() || !peer.receives.empty() || !peer.differing.empty() ||
         std::ranges::any_of(receives_, [&](const Receive& receive) {
           return receive.peer == rank && receive.message != nullptr;
         });
}

bool Messages::is_alone(const std::vector<bool>& left) const {
  for (int r = 0; r < member_->size(); ++r)
    if (r != member_->rank() && !left[static_cast<std::size_t>(r)]) return false;
  return member_->size() > 1;
}

void Messages::expire(Message& message) noexcept {
  if (message.ended()) return;
  const auto& op = message.op();
  const bool any = op.peer == any_peer;
  const auto& names = member_->names();
  const auto late =
      internal::call_error(Errc::timeout, names, {&op, 1}, {}, any ? -1 : op.peer, [&] {
        return fmt::format("the deadline passed; {} made its side of {}",
                           any ? "no rank has" : fmt::format("rank {} has not", names(op.peer)),
                           internal::describe(op, names));
      });
  fail(member_->fail(late));
}

/// The error of a message when the group is broken.
std::exception_ptr Messages::ended_by_cause(const Message& message) const noexcept {
  const auto own = internal::call_error(cause_->code(), member_->names(), {&message.op(), 1}, {},
                                        -1, [] { return std::string(); });
  // A cause of no call is that of every message: a peer has left.
  const bool of_a_call = !cause_->where().operation.empty();
  return std::make_exception_ptr(of_a_call ? internal::ended_by(*cause_, own.where()) : *cause_);
}

void Messages::fail(const Error& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
    for (const auto& message : std::exchange(pending_, {}))
      ended_.push_back({message, ended_by_cause(*message)});
    requests_.clear();
    receives_.clear();
    for (auto& peer : peers_) {
      peer.packets.clear();
      peer.accepted.clear();
      peer.sends.clear();
      peer.receives.clear();
      peer.differing.clear();
    }
  }
  finish_ended();
}

void Messages::stop() noexcept {
  // A receive may have ended while its answer waits for room.
  const auto soon = Deadline::after(1s);
  const auto waits = [&] {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(peers_, [](const Peer& peer) { return !peer.packets.empty(); });
  };
  while (waits() && !soon.expired() && !member_->is_broken())
    if (!drive()) std::this_thread::sleep_for(1ms);
  fail(internal::group_destroyed());
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Member::ring_bell(bell_);
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

// --- A message ---

std::string Messages::Message::description() const {
  return text_.empty() ? internal::describe(op_, messages_->member_->names()) : text_;
}

bool Messages::Message::done() const noexcept {
  if (!ended() && !forked()) {
    (void)messages_->drive();
    if (limit_.expired()) messages_->expire(const_cast<Message&>(*this));
  }
  return ended();
}

bool Messages::Message::wait_until(Deadline deadline) {
  if (ended() || forked()) return true;
  messages_->poll_for(*this);
  if (HostState::wait_until(deadline.time() < limit_.time() ? deadline : limit_)) return true;
  if (!limit_.expired()) return false;
  messages_->expire(*this);
  return HostState::wait_until(Deadline::none());
}

}  // namespace tutti::backend::shm
