#include "group/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "group/record.hpp"
#include "values/group_errors.hpp"

namespace tutti::internal {
namespace {

Error has_left(int rank) {
  return {Errc::peer_lost, fmt::format("rank {} has left the group", rank), {.rank = rank}};
}

}  // namespace

Mailbox::Mailbox(std::string group, int size, std::function<void(const Error&)> broken)
    : group_(std::move(group)), broken_(std::move(broken)), gone_(static_cast<std::size_t>(size)) {}

void Mailbox::post(const std::shared_ptr<Message>& message, int rank, const Call& call) noexcept {
  const auto& op = message->op();
  add({.op = op,
       .rank = rank,
       .text = call.name.empty() ? "" : describe({&op, 1}, call),
       .state = message});
}

void Mailbox::refuse(const Op& op, int rank, const Error& why) noexcept {
  add({.op = op, .rank = rank, .text = refusal_text({&op, 1}, {}, why), .state = nullptr});
}

void Mailbox::add(Post post) noexcept {
  const bool sending = post.op.kind == Operation::send;
  const std::tuple pair{sending ? post.rank : post.op.peer, sending ? post.op.peer : post.rank,
                        post.op.tag};
  std::optional<Post> other;
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    if (cause_) {
      error = broken(*cause_);
    } else {
      auto& box = boxes_[pair];
      auto& theirs = sending ? box.recvs : box.sends;
      if (!theirs.empty()) {
        other = std::move(theirs.front());
        theirs.erase(theirs.begin());
        // Tags may be used once each.
        if (box.sends.empty() && box.recvs.empty() && boxes_.size() > kept_boxes)
          boxes_.erase(pair);
      } else if (gone_[static_cast<std::size_t>(post.op.peer)]) {
        error = has_left(post.op.peer);
      } else {
        (sending ? box.sends : box.recvs).push_back(std::move(post));
        return;
      }
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
        side->state->finish(std::make_exception_ptr(error_of(std::span(&side->op, 1))));
  };
  if (send.state == nullptr || recv.state == nullptr) {
    const Post& refuser = send.state == nullptr ? send : recv;
    return end_both([&](std::span<const Op> op) {
      return refused_error(group_, op, {}, refuser.rank, refuser.text);
    });
  }
  if (send.op.fingerprint != recv.op.fingerprint) {
    const auto shown = [](const Post& post) {
      return post.text.empty() ? describe(post.op) : post.text;
    };
    const auto text = sides_text(send.rank, shown(send), recv.rank, shown(recv));
    return end_both([&](std::span<const Op> op) {
      return call_error(Errc::mismatch, group_, op, {}, -1, text);
    });
  }
  if (const auto bytes = send.op.in.bytes(); bytes != 0 && recv.op.out.data != send.op.in.data)
    std::memmove(recv.op.out.data, send.op.in.data, bytes);  // A rank may send to itself.
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

void Mailbox::leave(int rank) noexcept {
  std::vector<Post> orphans;
  {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    for (auto& [pair, box] : boxes_) {
      if (std::get<0>(pair) != rank && std::get<1>(pair) != rank) continue;
      for (auto* queue : {&box.sends, &box.recvs})
        for (auto& post : std::exchange(*queue, {})) orphans.push_back(std::move(post));
    }
  }
  const Error error = has_left(rank);
  // A peer may wait for a message that this rank has not posted.
  if (std::ranges::any_of(
          orphans, [&](const Post& post) { return post.state != nullptr && post.rank != rank; }))
    broken_(error);
  end_all(orphans, error);
}

void Mailbox::fail(const Error& cause) noexcept {
  std::vector<Post> pending;
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
    for (auto& [pair, box] : boxes_)
      for (auto* queue : {&box.sends, &box.recvs})
        for (auto& post : std::exchange(*queue, {})) pending.push_back(std::move(post));
  }
  end_all(pending, cause);
}

void Mailbox::end_all(const std::vector<Post>& posts, const Error& why) noexcept {
  for (const auto& post : posts)
    if (post.state != nullptr) post.state->finish(std::make_exception_ptr(why));
}

bool Mailbox::Message::done() const noexcept {
  if (!HostState::done() && !forked() && limit_.expired()) const_cast<Message*>(this)->expire();
  return HostState::done();
}

bool Mailbox::Message::wait_until(Deadline deadline) {
  if (HostState::wait_until(deadline.time() < limit_.time() ? deadline : limit_)) return true;
  if (!limit_.expired()) return false;
  expire();
  return HostState::wait_until(Deadline::none());  // A matched message is being copied.
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

void Mailbox::Message::expire() noexcept {
  if (!box_->withdraw(*this)) return;
  const auto late =
      call_error(Errc::timeout, box_->group_, {&op_, 1}, {}, op_.peer,
                 fmt::format("the deadline passed; rank {} has not made its side of {}", op_.peer,
                             describe(op_)));
  box_->broken_(late);
  finish(std::make_exception_ptr(late));
}

}  // namespace tutti::internal
