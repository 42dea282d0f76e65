// Messages whose sender or receiver has given up.

#include <atomic>
#include <optional>

#include "worker.hpp"

namespace tutti::backend::ucx {

bool Worker::withdraw(Request& request, Deadline limit) {
  {
    Lock lock(*this);
    if (closing_) {
      changed_.wait(lock.get(), [&] { return worker_ == nullptr; });
      return true;
    }
    if (request.sends) {
      auto& withdrawal = discarded_.emplace_back();
      withdrawal.kind = Discarded::Kind::withdrawal_sent;
      withdrawal.tag = request.tag;
      withdrawal.request = {.peer = request.peer,
                            .tag = withdrawal_of(rank_),
                            .sends = true,
                            .ended = false,
                            .worker = this};
      begin(withdrawal.request,
            post_send(withdrawal.request, &withdrawal.tag, sizeof withdrawal.tag));
    } else if (!request.ended) {
      api_.request_cancel(worker_, request.handle);
    }
  }
  // A receive that has been matched ends when all of its data has arrived.
  const std::atomic<bool> never{false};
  const auto outcome = wait(request, limit, never);
  return outcome == Outcome::ended || (outcome == Outcome::closed && withdraw(request, limit));
}

bool Worker::discard(ucp_tag_t tag, ucp_tag_t mask, bool is_withdrawal) {
  ucp_tag_recv_info_t info{};
  const auto message = api_.tag_probe(worker_, tag, mask, 1, &info);
  if (message == nullptr) return false;
  auto& d = discarded_.emplace_back();
  d.kind = is_withdrawal ? Discarded::Kind::withdrawal_received : Discarded::Kind::message_received;
  d.request = {.ended = false, .worker = this};
  auto p = parameters(d.request);
  p.cb.recv = received;
  // A message that does not fit is truncated: its bytes are not transferred, and its sender ends.
  begin(d.request,
        api_.tag_msg_recv(worker_, &d.tag, is_withdrawal ? sizeof d.tag : 0, message, &p));
  return true;
}

void Worker::serve_withdrawals() {
  while (discard(0, hash_mask, true)) {
  }
  for (auto d = discarded_.begin(); d != discarded_.end();) {
    if (!d->request.ended) {
      ++d;
      continue;
    }
    const auto done = d++;
    if (done->kind == Discarded::Kind::withdrawal_received && done->request.status == UCS_OK)
      (void)discard(done->tag, ~ucp_tag_t{0}, false);  // None if a receive has matched it.
    discarded_.erase(done);
  }
}

std::optional<int> Worker::unreceived() {
  Lock lock(*this);
  if (closing_) return std::nullopt;
  drain();
  serve_withdrawals();
  ucp_tag_recv_info_t info{};
  if (api_.tag_probe(worker_, 0, 0, 0, &info) == nullptr) return std::nullopt;
  return static_cast<int>(info.sender_tag >> rank_shift);
}

}  // namespace tutti::backend::ucx
