#include "worker.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::ucx {

using namespace std::chrono_literals;

void Worker::log_lines(std::unique_lock<std::mutex>& lock) noexcept {
  auto lines = std::exchange(lines_, {});
  has_lines_ = false;
  if (const auto more = std::exchange(lines_left_out_, 0); more != 0)
    lines.back().second += fmt::format(" (and {} more lines at the end of the group)", more);
  lock.unlock();
  for (const auto& [level, text] : lines) {
    try {
      logger_(level, text);
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
    request.worker = this;
    end(request, UCS_PTR_STATUS(handle));
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
  mesh::Links::end(request, status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED);
  if (request.handle == nullptr) return;  // begin() frees it.
  api_.request_free(std::exchange(request.handle, nullptr));
  (request.before == nullptr ? in_flight_ : request.before->after) = request.after;
  if (request.after != nullptr) request.after->before = request.before;
}

ucs_status_ptr_t Worker::post_send(Request& request, const void* data, std::size_t bytes) {
  const auto& endpoint = endpoints_[static_cast<std::size_t>(request.peer)];
  if (is_closing() || endpoint.lost) return UCS_STATUS_PTR(UCS_ERR_CANCELED);
  auto p = parameters(request);
  p.cb.send = ended;
  const auto post = synchronous_ ? api_.tag_send_sync : api_.tag_send;
  return post(endpoint.handle, data, bytes, request.tag, &p);
}

/// Makes progress until there is nothing to do. A peer may send faster than this rank receives, so
/// there may always be something.
void Worker::drain() {
  const LogTo log(collector_);
  const auto limit = Deadline::after(20ms);
  while (api_.worker_progress(worker_) != 0 && !limit.expired()) {
  }
}

void Worker::drain(int) noexcept {
  drain();
}

void Worker::post(Request& request, int peer, ucp_tag_t tag, bool sends) {
  mesh::Links::begin(request, peer, sends);
  request.tag = tag;
  request.worker = this;
}

void Worker::send(Request& request, int peer, std::uint64_t slot, const void* data,
                  std::size_t bytes, bool) {
  Lock lock(*this);
  const LogTo log(collector_);
  // Notices connections that ended while this rank made no calls: a small message to such a peer
  // would otherwise count as sent.
  if (!is_closing() && std::exchange(idle_, false)) {
    drain();
    serve();
  }
  post(request, peer, tag_of(rank_, slot), true);
  begin(request, post_send(request, data, bytes));
}

void Worker::recv(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes) {
  Lock lock(*this);
  const LogTo log(collector_);
  post(request, peer, tag_of(peer, slot), false);
  if (is_closing()) return begin(request, UCS_STATUS_PTR(UCS_ERR_CANCELED));
  auto p = parameters(request);
  p.cb.recv = received;
  // The callback has the length. Without this flag it is not called for a message that is there.
  p.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  begin(request, api_.tag_recv(worker_, data, bytes, request.tag, ~ucp_tag_t{0}, &p));
}

bool Worker::has_arrived(int peer, std::uint64_t slot) {
  Lock lock(*this);
  if (is_closing()) return false;
  progress();
  ucp_tag_recv_info_t info{};
  return api_.tag_probe(worker_, tag_of(peer, slot), ~ucp_tag_t{0}, 0, &info) != nullptr;
}

bool Worker::progress() noexcept {
  const LogTo log(collector_);
  return api_.worker_progress(worker_) != 0;
}

void Worker::sleep(Lock& lock, bool watches, bool moves, std::chrono::milliseconds time) {
  // UCS_ERR_BUSY: there are events, for which progress has to be made first.
  if (moves && api_.worker_arm(worker_) != UCS_OK) return;
  std::array<pollfd, 3> events{{{moves ? descriptor_ : -1, POLLIN, 0},
                                {watches ? event_.descriptor() : -1, POLLIN, 0},
                                {watches ? -1 : wake_.descriptor(), POLLIN, 0}}};
  lock.get().unlock();
  (void)::poll(events.data(), events.size(), static_cast<int>(time.count()));
  lock.take();
}

}  // namespace tutti::backend::ucx
