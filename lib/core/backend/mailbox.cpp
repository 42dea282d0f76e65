#include "backend/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/current_error.hpp"
#include "values/group_errors.hpp"

namespace tutti::internal {

Error Mailbox::has_left(int rank) const noexcept {
  return described(Errc::peer_lost, [&, shown = names_(rank)]() -> Error {
    if (rank == any_peer) return {Errc::peer_lost, "all other ranks have left the group", {}};
    return {Errc::peer_lost, fmt::format("rank {} has left the group", shown), {.rank = shown}};
  });
}

Mailbox::Mailbox(GroupNames names, int size, std::function<void(const Error&)> broken)
    : names_(std::move(names)), broken_(std::move(broken)), gone_(static_cast<std::size_t>(size)) {}

void Mailbox::post(const std::shared_ptr<Message>& message, int rank, const Call& call) {
  const auto& op = message->op();
  add({.op = op,
       .rank = rank,
       .text = call.name.empty() ? "" : describe({&op, 1}, call, names_),
       .state = message});
}

void Mailbox::refuse(const Op& op, int rank, const Error& why) noexcept {
  try {
    add({.op = op, .rank = rank, .text = refusal_text({&op, 1}, {}, why), .state = nullptr});
  } catch (...) {
    broken_(to_error(std::current_exception()));
  }
}

bool Mailbox::is_alone(int rank) const noexcept {
  for (std::size_t r = 0; r < gone_.size(); ++r)
    if (!gone_[r] && static_cast<int>(r) != rank) return false;
  return gone_.size() > 1;
}

std::optional<Mailbox::Post> Mailbox::match(const Post& post) {
  const bool sending = post.op.kind == Operation::send;
  const auto queue_of = [&](Box& box) -> Queue& { return sending ? box.recvs : box.sends; };
  auto oldest = boxes_.end();
  const auto look = [&](int sender, int receiver) {
    const auto found = boxes_.find({sender, receiver, post.op.tag});
    if (found == boxes_.end() || queue_of(found->second).empty()) return;
    if (oldest == boxes_.end() ||
        queue_of(found->second).front().age < queue_of(oldest->second).front().age)
      oldest = found;
  };
  if (sending) {
    look(post.rank, post.op.peer);
    look(any_peer, post.op.peer);
  } else if (post.op.peer != any_peer) {
    look(post.op.peer, post.rank);
  } else {
    for (int sender = 0; sender < std::ssize(gone_); ++sender) look(sender, post.rank);
  }
  if (oldest == boxes_.end()) return std::nullopt;
  auto& box = oldest->second;
  std::optional<Post> found(std::move(queue_of(box).front()));
  queue_of(box).erase(queue_of(box).begin());
  // A program may use each tag only once, so not all empty boxes are kept.
  if (box.sends.empty() && box.recvs.empty() && boxes_.size() > kept_boxes) boxes_.erase(oldest);
  return found;
}

void Mailbox::add(Post post) {
  const bool sending = post.op.kind == Operation::send;
  const int peer = post.op.peer;
  std::optional<Post> other;
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    if (cause_) {
      error = broken(*cause_);
    } else if (other = match(post); other) {
      // Copying does not need the lock.
    } else if (peer == any_peer ? is_alone(post.rank) : gone_[static_cast<std::size_t>(peer)]) {
      error = has_left(peer);
    } else {
      const auto [found, made] =
          boxes_.try_emplace({sending ? post.rank : peer, sending ? peer : post.rank, post.op.tag});
      auto& box = found->second;
      if (made) {  // Reserves both: either side may come first.
        box.sends.reserve(2);
        box.recvs.reserve(2);
      }
      post.age = age_++;
      (sending ? box.sends : box.recvs).push_back(std::move(post));
      return;
    }
  }
  if (other) return sending ? complete(post, *other) : complete(*other, post);
  if (error->code() == Errc::peer_lost) broken_(*error);
  if (post.state != nullptr) post.state->finish(std::make_exception_ptr(*error));
}

void Mailbox::complete(const Post& send, const Post& recv) const noexcept {
  const auto end_both = [&](const auto& error_of) {
    for (const auto* side : {&send, &recv})
      if (side->state != nullptr)
        side->state->finish(std::make_exception_ptr(
            described(Errc::mismatch, [&] { return error_of(std::span(&side->op, 1)); })));
  };
  if (send.state == nullptr || recv.state == nullptr) {
    const Post& refuser = send.state == nullptr ? send : recv;
    return end_both([&](std::span<const Op> op) {
      return refused_error(names_, op, {}, refuser.rank, refuser.text);
    });
  }
  if (send.op.fingerprint != recv.op.fingerprint) {
    const auto shown = [&](const Post& post) {
      return post.text.empty() ? describe(post.op, names_) : post.text;
    };
    return end_both([&](std::span<const Op> op) {
      return call_error(Errc::mismatch, names_, op, {}, -1,
                        sides_text(names_, send.rank, shown(send), recv.rank, shown(recv)));
    });
  }
  if (const auto bytes = send.op.in.bytes(); bytes != 0 && recv.op.out.data != send.op.in.data)
    // Not memcpy(): a rank may send to itself within one array.
    std::memmove(recv.op.out.data, send.op.in.data, bytes);
  if (recv.op.source != nullptr) *recv.op.source = send.rank;
  send.state->finish(nullptr);
  recv.state->finish(nullptr);
}

bool Mailbox::withdraw(const Message& message) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [pair, box] : boxes_)
    for (auto* queue : {&box.sends, &box.recvs})
      if (std::erase_if(*queue, [&](const Post& post) { return post.state.get() == &message; }) !=
          0)
        return true;
  return false;
}

bool Mailbox::has_send(int rank, int tag) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = boxes_.find({rank, rank, tag});
  return found != boxes_.end() && !found->second.sends.empty();
}

void Mailbox::leave(int rank) noexcept {
  {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
  }
  const Error error = has_left(rank);
  const auto next = [&] {
    const std::lock_guard lock(mutex_);
    return take([&](const Key& key) {
      const auto [sender, receiver, tag] = key;
      return sender == rank || receiver == rank || (sender == any_peer && is_alone(receiver));
    });
  };
  bool waited = false;  // A peer, for a message that `rank` will never post.
  while (const auto post = next()) {
    if (post->state == nullptr) continue;
    waited = waited || post->rank != rank;
    post->state->finish(
        std::make_exception_ptr(post->op.peer == any_peer ? has_left(any_peer) : error));
  }
  if (waited) broken_(error);
}

void Mailbox::fail(const Error& cause) noexcept {
  const auto next = [&] {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
    return take([](const Key&) { return true; });
  };
  while (const auto post = next())
    if (post->state != nullptr) post->state->finish(std::make_exception_ptr(cause));
}

template <typename Ends>
std::optional<Mailbox::Post> Mailbox::take(const Ends& ends) {
  for (auto& [key, box] : boxes_) {
    if (!ends(key)) continue;
    for (auto* queue : {&box.sends, &box.recvs}) {
      if (queue->empty()) continue;
      std::optional<Post> taken(std::move(queue->front()));
      queue->erase(queue->begin());
      return taken;
    }
  }
  return std::nullopt;
}

bool Mailbox::Message::done() const noexcept {
  if (!HostState::done() && !forked() && limit_.expired()) const_cast<Message*>(this)->expire();
  return HostState::done();
}

bool Mailbox::Message::wait_until(Deadline deadline) {
  if (HostState::wait_until(deadline.time() < limit_.time() ? deadline : limit_)) return true;
  if (!limit_.expired()) return false;
  expire();
  return HostState::wait_until(Deadline::none());  // The matched message is being copied.
}

/// Ends the message at its deadline.
class Mailbox::Message::Expiry final : public CallQueue::Job {
 public:
  explicit Expiry(const std::shared_ptr<HostState>& message) : message_(message) {}
  void run() noexcept override {
    if (const auto message = message_.lock()) (void)message->done();
  }
  void drop(const Error&) noexcept override {}
  bool is_over() const noexcept override {
    const auto message = message_.lock();
    return message == nullptr || message->HostState::done();
  }

 private:
  std::weak_ptr<HostState> message_;
};

void Mailbox::Message::watch_deadline() {
  if (forked() || limit_.is_none() || HostState::done()) return;
  queue().submit_at(limit_, std::make_shared<Expiry>(shared_from_this()));
}

std::shared_ptr<WorkState> Mailbox::Message::then(std::function<void()> next) {
  watch_deadline();
  return HostState::then(std::move(next));
}

std::shared_ptr<WorkState> Mailbox::Message::on_done(std::function<void(const Error*)> f) {
  watch_deadline();
  return HostState::on_done(std::move(f));
}

bool Mailbox::Message::withdraw(const Error& why) noexcept {
  if (box_->withdraw(*this)) finish(std::make_exception_ptr(why));
  return true;  // Otherwise it has been matched and will end.
}

void Mailbox::Message::expire() noexcept {
  if (!box_->withdraw(*this)) return;
  const bool any = op_.peer == any_peer;
  const auto& names = box_->names_;
  const auto late = call_error(Errc::timeout, names, {&op_, 1}, {}, any ? -1 : op_.peer, [&] {
    return fmt::format("the deadline passed; {} made its side of {}",
                       any ? "no rank has" : fmt::format("rank {} has not", names(op_.peer)),
                       describe(op_, names));
  });
  box_->broken_(late);
  finish(std::make_exception_ptr(late));
}

}  // namespace tutti::internal
