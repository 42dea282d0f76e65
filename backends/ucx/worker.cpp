#include "worker.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "config.hpp"

namespace tutti::backend::ucx {
namespace {

using namespace std::chrono_literals;

// A tag: the sender's rank in the upper 16 bits, a hash in the others. Hash 0 is the tag of a
// withdrawal, whose 8 bytes are the tag of the withdrawn message.
constexpr unsigned rank_shift = 48;
constexpr ucp_tag_t hash_mask = (ucp_tag_t{1} << rank_shift) - 1;

/// The longest sleep of a waiting thread between two looks at its deadline and its flag.
constexpr auto slice = 20ms;

ucp_tag_t withdrawal_of(int sender) {
  return static_cast<ucp_tag_t>(sender) << rank_shift;
}

ucp_request_param_t parameters(void* user) {
  ucp_request_param_t p{};
  p.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  p.user_data = user;
  p.memory_type = UCS_MEMORY_TYPE_HOST;
  return p;
}

}  // namespace

/// Holds the lock. A thread that makes progress gives it to a thread that wants it.
class Worker::Lock {
 public:
  explicit Lock(Worker& worker)
      : worker_(worker), lock_(worker.mutex_, std::try_to_lock), log_(worker.collector_) {
    if (!lock_) take();
  }
  ~Lock() {
    log_.reset();
    if (!worker_.lines_.empty()) deliver();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  std::unique_lock<std::mutex>& get() noexcept { return lock_; }
  /// Locks again. A thread that makes progress would otherwise keep the lock: while UCX has events
  /// that it cannot handle, because the peer has died, that thread does not sleep.
  void take() {
    worker_.wanting_.fetch_add(1);
    lock_.lock();
    worker_.wanting_.fetch_sub(1);
  }
  /// Calls the logger with UCX's lines, without the lock. The caller makes no progress: the logger
  /// may close the worker, which waits for that.
  void log_lines() {
    if (worker_.lines_.empty()) return;
    log_.reset();
    deliver();
    lock_.lock();
    log_.emplace(worker_.collector_);
  }
  void give_way() {
    if (worker_.wanting_.load(std::memory_order_relaxed) == 0) return;
    const auto is_wanted = [&] { return worker_.wanting_.load(std::memory_order_relaxed) != 0; };
    lock_.unlock();
    for (int i = 0; i < 100 && is_wanted(); ++i) ::sched_yield();
    // On a busy machine the other thread runs only when this one sleeps.
    for (int i = 0; i < 100 && is_wanted(); ++i) std::this_thread::sleep_for(50us);
    take();
  }

 private:
  void deliver() noexcept {
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

  Worker& worker_;
  std::unique_lock<std::mutex> lock_;
  std::optional<LogTo> log_;
};

/// A message of withdraw().
struct Worker::Discarded {
  enum class Kind : std::uint8_t { withdrawal_sent, withdrawal_received, message_received };
  Kind kind{};
  ucp_tag_t tag = 0;  // The memory of a withdrawal.
  Request request{};
};

Worker::Worker(const UcxApi& api, int rank, int size, const Transports& transports, Logger logger,
               std::function<void(int peer)> ended)
    : api_(api),
      rank_(rank),
      report_ends_(transports.report_ends),
      logger_(std::move(logger)),
      collector_([this](LogLevel level, std::string_view text) {
        // UCX has a line for each message that was not received.
        if (closing_ && !lines_.empty()) {
          ++lines_left_out_;
          return;
        }
        try {
          lines_.emplace_back(level, text);
        } catch (const std::bad_alloc&) {  // Called by UCX, which is C.
        }
      }),
      ended_(std::move(ended)),
      endpoints_(static_cast<std::size_t>(size)) {
  ends_.reserve(endpoints_.size());
  polling_.emplace(2, 1);
  const LogTo log(logger_);
  const Config config(api, transports.list, transports.dead_after);
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_TAG_SENDER_MASK;
  wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  wanted.estimated_num_eps = static_cast<std::size_t>(size);
  wanted.tag_sender_mask = ~hash_mask;
  check(api, api.init_version(UCP_API_MAJOR, UCP_API_MINOR, &wanted, config, &context_),
        "ucp_init");
  ucp_worker_params_t of_worker{};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  of_worker.events = UCP_WAKEUP_TAG_SEND | UCP_WAKEUP_TAG_RECV;
  auto status = api.worker_create(context_, &of_worker, &worker_);
  if (status == UCS_OK) {
    status = api.worker_get_efd(worker_, &descriptor_);
    if (status != UCS_OK) api.worker_destroy(worker_);
  }
  if (status != UCS_OK) api.cleanup(context_);
  check(api, status, "ucp_worker_create");
}

Worker::~Worker() {
  close();
}

void Worker::set_polling(std::size_t ranks, std::size_t cores) {
  polling_.emplace(ranks, cores);
}

std::string Worker::address() const {
  const std::lock_guard lock(mutex_);
  ucp_address_t* data = nullptr;
  std::size_t bytes = 0;
  check(api_, api_.worker_get_address(worker_, &data, &bytes), "ucp_worker_get_address");
  std::string text(reinterpret_cast<const char*>(data), bytes);
  api_.worker_release_address(worker_, data);
  return text;
}

void Worker::connect(int peer, std::string_view address) {
  Lock lock(*this);
  auto& endpoint = endpoints_[static_cast<std::size_t>(peer)];
  endpoint.worker = this;
  endpoint.peer = peer;
  ucp_ep_params_t wanted{};
  wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  wanted.address = reinterpret_cast<const ucp_address_t*>(address.data());
  wanted.err_mode = report_ends_ ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  wanted.err_handler = {.cb = failed, .arg = &endpoint};
  const auto status = api_.ep_create(worker_, &wanted, &endpoint.handle);
  if (status != UCS_OK) endpoint.handle = nullptr;
  check(api_, status, fmt::format("connecting to rank {}", peer));
}

ucp_tag_t Worker::tag_of(int sender, std::uint64_t slot) noexcept {
  return withdrawal_of(sender) | std::max<ucp_tag_t>(slot & hash_mask, 1);
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

void Worker::failed(void* endpoint, ucp_ep_h, ucs_status_t) {
  auto& e = *static_cast<Endpoint*>(endpoint);
  e.worker->lose(e);
}

void Worker::lose(Endpoint& endpoint) {
  if (std::exchange(endpoint.lost, true)) return;
  if (sleeping_ > 0) changed_.notify_all();
  ended_(endpoint.peer);
  event_.set();
}

void Worker::set_lost(int peer) {
  Lock lock(*this);
  if (!closing_) lose(endpoints_[static_cast<std::size_t>(peer)]);
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
  auto p = parameters(&request);
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
  auto p = parameters(&request);
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
  auto p = parameters(&d.request);
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

void Worker::drive(ucs_status_ptr_t handle, Deadline limit) {
  if (!UCS_PTR_IS_PTR(handle)) return;
  while (api_.request_check_status(handle) == UCS_INPROGRESS && !limit.expired())
    if (api_.worker_progress(worker_) == 0) ::sched_yield();
  api_.request_free(handle);
}

void Worker::flush(Deadline limit) {
  Lock lock(*this);
  if (closing_) return;
  const ucp_request_param_t none{};
  ends_.clear();
  for (const auto& endpoint : endpoints_)
    if (endpoint.handle != nullptr && !endpoint.lost)
      ends_.push_back(api_.ep_flush(endpoint.handle, &none));
  for (auto* const handle : ends_) drive(handle, limit);
}

std::optional<int> Worker::unreceived() {
  Lock lock(*this);
  if (closing_) return std::nullopt;
  // A peer that goes on sending keeps the worker busy for ever.
  const auto limit = Deadline::after(20ms);
  while (api_.worker_progress(worker_) != 0 && !limit.expired()) {
  }
  serve_withdrawals();
  ucp_tag_recv_info_t info{};
  if (api_.tag_probe(worker_, 0, 0, 0, &info) == nullptr) return std::nullopt;
  return static_cast<int>(info.sender_tag >> rank_shift);
}

void Worker::close_endpoints() {
  if (!report_ends_) return;  // UCX then supports no close by force. Destroying the worker does it.
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ends_.clear();
  for (auto& endpoint : endpoints_)
    if (endpoint.handle != nullptr)
      ends_.push_back(api_.ep_close(std::exchange(endpoint.handle, nullptr), &force));
  const auto limit = Deadline::after(20ms);  // Destroying the worker ends the rest.
  for (auto* const handle : ends_) drive(handle, limit);
}

void Worker::close() noexcept {
  Lock lock(*this);
  if (std::exchange(closing_, true)) {
    changed_.wait(lock.get(), [&] { return worker_ == nullptr; });
    return;
  }
  changed_.notify_all();
  event_.set();
  ++sleeping_;
  while (progressing_ || polling_threads_ > 0) {
    api_.worker_signal(worker_);
    changed_.wait_for(lock.get(), 1ms);
  }
  --sleeping_;
  for (auto* request = in_flight_; request != nullptr;) {
    auto* const next = request->after;
    if (!request->sends) api_.request_cancel(worker_, request->handle);
    request = next;
  }
  close_endpoints();
  api_.worker_destroy(std::exchange(worker_, nullptr));
  api_.cleanup(context_);
  // UCX has forgotten requests that it could not end.
  for (; in_flight_ != nullptr; in_flight_ = in_flight_->after) {
    in_flight_->status = UCS_ERR_CANCELED;
    in_flight_->ended = true;
  }
  changed_.notify_all();
}

}  // namespace tutti::backend::ucx
