#include "worker.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::ucx {
namespace {

using namespace std::chrono_literals;

/// The longest sleep of a waiting thread between two looks at its deadline and its flag.
constexpr auto slice = 20ms;

}  // namespace

void Worker::Lock::yield() {
  const auto is_wanted = [&] { return worker_.wanting_.load(std::memory_order_relaxed) != 0; };
  lock_.unlock();
  for (int i = 0; i < 100 && is_wanted(); ++i) ::sched_yield();
  // On a busy machine the other thread runs only when this one sleeps.
  for (int i = 0; i < 100 && is_wanted(); ++i) std::this_thread::sleep_for(50us);
  take();
}

void Worker::Lock::deliver() noexcept {
  auto lines = std::exchange(worker_.lines_, {});
  if (const auto more = std::exchange(worker_.lines_left_out_, 0); more != 0)
    lines.back().second += fmt::format(" (and {} more lines at the end of the group)", more);
  lock_.unlock();
  for (const auto& [level, text] : lines) {
    try {
      worker_.logger_(level, text);
    } catch (...) {  // An error of the logger is not one of the call.
    }
  }
}

ucp_tag_t Worker::tag_of(int sender, std::uint64_t slot) noexcept {
  return withdrawal_of(sender) | std::max<ucp_tag_t>(slot & hash_mask, 1);
}

ucp_request_param_t Worker::parameters(Request& request) {
  ucp_request_param_t p{};
  p.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  p.user_data = &request;
  p.memory_type = UCS_MEMORY_TYPE_HOST;
  return p;
}

void Worker::set_polling(std::size_t ranks, std::size_t cores) {
  polling_.emplace(ranks, cores);
}

void Worker::ended(void*, ucs_status_t status, void* request) {
  auto& r = *static_cast<Request*>(request);
  r.worker->end(r, status);
}

void Worker::received(void* handle, ucs_status_t status, const ucp_tag_recv_info_t* info,
                      void* request) {
  static_cast<Request*>(request)->received = info->length;
  ended(handle, status, request);
}

void Worker::begin(Request& request, ucs_status_ptr_t handle) {
  if (!UCS_PTR_IS_PTR(handle)) {
    request.status = UCS_PTR_STATUS(handle);
    request.ended = true;
    return;
  }
  if (request.ended) {  // UCX has called end() before it returned the handle.
    api_.request_free(handle);
    return;
  }
  request.handle = handle;
  request.after = in_flight_;
  if (in_flight_ != nullptr) in_flight_->before = &request;
  in_flight_ = &request;
}

void Worker::end(Request& request, ucs_status_t status) {
  request.status = status;
  request.ended = true;
  if (request.handle == nullptr) return;  // begin() frees it.
  api_.request_free(std::exchange(request.handle, nullptr));
  (request.before == nullptr ? in_flight_ : request.before->after) = request.after;
  if (request.after != nullptr) request.after->before = request.before;
  if (sleeping_ > 0) changed_.notify_all();
}

ucs_status_ptr_t Worker::post_send(Request& request, const void* data, std::size_t bytes) {
  const auto& endpoint = endpoints_[static_cast<std::size_t>(request.peer)];
  if (closing_ || endpoint.lost) return UCS_STATUS_PTR(UCS_ERR_CANCELED);
  auto p = parameters(request);
  p.cb.send = ended;
  const auto post = synchronous_ ? api_.tag_send_sync : api_.tag_send;
  return post(endpoint.handle, data, bytes, request.tag, &p);
}

/// Notices connections that ended while this rank made no calls. A small message to such a peer
/// would otherwise count as sent.
void Worker::catch_up() {
  if (!closing_ && std::exchange(idle_, false)) drain();
}

/// Makes progress until there is nothing to do. A peer may send faster than this rank receives, so
/// there may always be something.
void Worker::drain() {
  const auto limit = Deadline::after(20ms);
  while (api_.worker_progress(worker_) != 0 && !limit.expired()) {
  }
}

void Worker::send(Request& request, int peer, ucp_tag_t tag, const void* data, std::size_t bytes) {
  Lock lock(*this);
  catch_up();
  request = {.peer = peer, .tag = tag, .sends = true, .ended = false, .worker = this};
  begin(request, post_send(request, data, bytes));
}

void Worker::recv(Request& request, int peer, ucp_tag_t tag, void* data, std::size_t bytes) {
  Lock lock(*this);
  request = {.peer = peer, .tag = tag, .sends = false, .ended = false, .worker = this};
  if (closing_) return begin(request, UCS_STATUS_PTR(UCS_ERR_CANCELED));
  auto p = parameters(request);
  p.cb.recv = received;
  // The callback has the length. Without this flag it is not called for a message that is there.
  p.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  begin(request, api_.tag_recv(worker_, data, bytes, tag, ~ucp_tag_t{0}, &p));
}

bool Worker::has_arrived(ucp_tag_t tag) {
  Lock lock(*this);
  if (closing_) return false;
  if (!progressing_) api_.worker_progress(worker_);
  ucp_tag_recv_info_t info{};
  return api_.tag_probe(worker_, tag, ~ucp_tag_t{0}, 0, &info) != nullptr;
}

bool Worker::is_lost(const Request& request) const noexcept {
  return endpoints_[static_cast<std::size_t>(request.peer)].lost;
}

Worker::Outcome Worker::wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled) {
  Lock lock(*this);
  for (;;) {
    if (request.ended) return Outcome::ended;
    if (closing_) return Outcome::closed;
    if (cancelled.load(std::memory_order_relaxed)) return Outcome::cancelled;
    if (is_lost(request)) {  // What it had sent has arrived, but is perhaps not yet received.
      if (!request.sends) drain();
      return request.ended ? Outcome::ended : Outcome::lost;
    }
    if (!progressing_) {
      progressing_ = true;
      progress(lock, request, cancelled);
      if (!request.ended && !closing_ && !limit.expired())
        sleep(lock, -1,
              std::chrono::ceil<std::chrono::milliseconds>(
                  std::min<std::chrono::nanoseconds>(limit.remaining(), slice)));
      progressing_ = false;
      if (sleeping_ > 0) changed_.notify_all();
      lock.log_lines();
    } else {
      ++sleeping_;
      changed_.wait_until(lock.get(), std::min(limit.time(), Deadline::after(slice).time()));
      --sleeping_;
    }
    if (!request.ended && limit.expired()) return Outcome::late;
  }
}

void Worker::progress(Lock& lock, const Request& request, const std::atomic<bool>& cancelled) {
  (void)polling_->until([&] {
    lock.give_way();
    if (closing_) return true;
    api_.worker_progress(worker_);
    return request.ended || cancelled.load(std::memory_order_relaxed) || is_lost(request);
  });
}

void Worker::sleep(Lock& lock, int other, std::chrono::milliseconds time) {
  // UCS_ERR_BUSY: there are events, for which progress has to be made first.
  if (api_.worker_arm(worker_) != UCS_OK) return;
  std::array<pollfd, 2> events{{{descriptor_, POLLIN, 0}, {other, POLLIN, 0}}};
  ++polling_threads_;
  lock.get().unlock();
  (void)::poll(events.data(), events.size(), static_cast<int>(time.count()));
  lock.take();
  --polling_threads_;
  if (closing_) changed_.notify_all();
}

void Worker::alert() noexcept {
  Lock lock(*this);
  if (!std::exchange(alerted_, true)) event_.set();
}

void Worker::attend(std::chrono::milliseconds time) {
  constexpr auto nap = 1ms;
  const auto limit = Deadline::after(time);
  Lock lock(*this);
  while (!closing_) {
    const bool others = progressing_;
    if (!others)
      while (!closing_ && !progressing_ && !limit.expired() && api_.worker_progress(worker_) != 0)
        lock.give_way();
    if (closing_) return;  // While it gave way.
    serve_withdrawals();
    idle_ = true;
    auto rest = std::chrono::ceil<std::chrono::milliseconds>(limit.remaining());
    if (rest <= 0ms) return;
    alerted_ = alerted_ && in_flight_ != nullptr;
    if (alerted_ && !others) {
      sleep(lock, event_.descriptor(), rest);
    } else {
      if (alerted_) rest = std::min<std::chrono::milliseconds>(rest, nap);
      pollfd event{event_.descriptor(), POLLIN, 0};
      lock.get().unlock();
      (void)::poll(&event, 1, static_cast<int>(rest.count()));
      lock.take();
    }
    if (event_.clear()) return;
  }
}

}  // namespace tutti::backend::ucx
