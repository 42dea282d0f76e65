// Messages whose sender or receiver has given up.

#include <atomic>
#include <chrono>
#include <new>
#include <optional>

#include "worker.hpp"

namespace tutti::backend::ucx {

bool Worker::withdraw(Request& request) {
  const auto limit = Deadline::after(std::chrono::seconds(2));
  const std::atomic<bool> never{false};
  {
    Lock lock(*this);
    const LogTo log(collector_);
    if (!is_closing() && request.sends) {
      auto& withdrawal = discarded_.emplace_back();
      withdrawal.kind = Discarded::Kind::withdrawal_sent;
      withdrawal.tag = request.tag;
      post(withdrawal.request, request.peer, withdrawal_of(rank_), true);
      begin(withdrawal.request,
            post_send(withdrawal.request, &withdrawal.tag, sizeof withdrawal.tag));
    } else if (!is_closing() && !request.ended) {
      api_.request_cancel(worker_, request.handle);
    }
  }
  // A receive that has been matched ends when all of its data has arrived.
  const auto outcome = wait(request, limit, never);
  if (outcome == Outcome::closed) close();  // Waits until UCX has forgotten the message.
  return outcome == Outcome::ended || outcome == Outcome::closed;
}

bool Worker::discard(ucp_tag_t tag, ucp_tag_t mask, bool is_withdrawal) {
  ucp_tag_recv_info_t info{};
  const auto message = api_.tag_probe(worker_, tag, mask, 1, &info);
  if (message == nullptr) return false;
  auto& d = discarded_.emplace_back();
  d.kind = is_withdrawal ? Discarded::Kind::withdrawal_received : Discarded::Kind::message_received;
  post(d.request, static_cast<int>(info.sender_tag >> rank_shift), 0, false);
  auto p = parameters(d.request);
  p.cb.recv = received;
  // A message that does not fit is truncated: its bytes are not transferred, and its sender ends.
  begin(d.request,
        api_.tag_msg_recv(worker_, &d.tag, is_withdrawal ? sizeof d.tag : 0, message, &p));
  return true;
}

void Worker::serve() noexcept {
  try {
    const auto now = Deadline::Clock::now();
    if (!processes_.empty() && now >= next_look_) {
      next_look_ = now + std::chrono::milliseconds(20);
      for (std::size_t r = 0; r < processes_.size(); ++r)
        if (!processes_[r].is_alive()) lose(endpoints_[r]);
    }
    discard_withdrawn();
  } catch (const std::bad_alloc&) {  // Tries again.
  }
}

void Worker::discard_withdrawn() {
  const LogTo log(collector_);
  while (discard(0, hash_mask, true)) {
  }
  for (auto d = discarded_.begin(); d != discarded_.end();) {
    if (!d->request.ended) {
      ++d;
      continue;
    }
    const auto done = d++;
    if (done->kind == Discarded::Kind::withdrawal_received && done->request.status == UCS_OK) {
      if (done->tag == 0)
        lose(endpoints_[static_cast<std::size_t>(done->request.peer)]);
      else
        (void)discard(done->tag, ~ucp_tag_t{0}, false);  // None if a receive has matched it.
    }
    discarded_.erase(done);
  }
}

std::optional<int> Worker::unreceived() {
  Lock lock(*this);
  if (is_closing()) return std::nullopt;
  drain();
  serve();
  ucp_tag_recv_info_t info{};
  if (api_.tag_probe(worker_, 0, 0, 0, &info) == nullptr) return std::nullopt;
  return static_cast<int>(info.sender_tag >> rank_shift);
}

}  // namespace tutti::backend::ucx
