#include "pairs.hpp"

#include <exception>
#include <new>
#include <utility>

#include "backend/record.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::mesh {

WaiterThreads::~WaiterThreads() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->changed.notify_all();
  for (auto& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id())
      thread.detach();  // A continuation destroyed the last reference.
    else
      thread.join();
  }
}

void WaiterThreads::run(std::function<void()> wait) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->waits.push_back(std::move(wait));
    try {
      if (queue_->idle < queue_->waits.size())
        threads_.emplace_back([queue = queue_] { work(*queue); });
    } catch (const std::exception& error) {
      queue_->waits.pop_back();
      internal::failf(Errc::resource_exhausted,
                      "cannot start a thread that waits for a send or receive: {}", error.what());
    }
  }
  queue_->changed.notify_one();
}

void WaiterThreads::work(Queue& queue) {
  std::unique_lock lock(queue.mutex);
  for (;;) {
    ++queue.idle;
    queue.changed.wait(lock, [&] { return queue.stop || !queue.waits.empty(); });
    --queue.idle;
    if (queue.waits.empty()) return;
    auto wait = std::move(queue.waits.front());
    queue.waits.pop_front();
    lock.unlock();
    wait();
    wait = nullptr;
    lock.lock();
  }
}

PairState::PairState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
                     std::weak_ptr<WaiterThreads> waiter_threads, const Op& op, Deadline limit,
                     std::string text)
    : HostState(std::move(queue)),
      group_(std::move(group)),
      waiter_threads_(std::move(waiter_threads)),
      op_(op),
      limit_(limit),
      text_(std::move(text)) {}

void PairState::post() {
  const bool sends = op_.kind == Operation::send;
  auto bytes = sends ? op_.in.bytes() : op_.out.bytes();
  auto* data = sends ? const_cast<void*>(op_.in.data) : op_.out.data;
  if (bytes == 0) {  // An empty message is compared and waited for like any other.
    data = &token_;
    bytes = 1;
  }
  try {
    message_ = group_->mesh->message(
        *std::pmr::new_delete_resource(), group_->mesh_rank(op_.peer), data, bytes,
        {group_->pair_id(op_), group_->calls.get(), {&op_, 1}, nullptr, text_});
    const auto slot = group_->pair_slot(op_);
    sends ? message_->send(slot) : message_->recv(slot, true);
    group_->mesh->attend();
  } catch (const TransportError& transport_error) {
    message_.reset();
    end(std::make_exception_ptr(group_->failed(transport_error, {&op_, 1}, {})));
  } catch (const std::bad_alloc&) {
    message_.reset();
    end(std::current_exception());
    throw;
  } catch (...) {
    message_.reset();
    end(std::current_exception());
  }
}

void PairState::end(std::exception_ptr error) noexcept {
  (void)claim();
  finish(std::move(error));
}

bool PairState::claim() noexcept {
  const std::lock_guard lock(message_mutex_);
  return !std::exchange(claimed_, true);
}

void PairState::wait_here() noexcept {
  std::exception_ptr error;
  std::optional<TransportError> transport_error;
  try {
    message_->wait(limit_);
  } catch (const TransportError& t) {
    transport_error = t;
  } catch (...) {
    error = std::current_exception();
  }
  std::shared_ptr<Message> ended;
  std::optional<Error> instead;
  {
    const std::lock_guard lock(message_mutex_);
    ended = std::move(message_);
    instead = instead_;
  }
  if (transport_error)
    error = std::make_exception_ptr(instead ? *instead
                                            : group_->failed(*transport_error, {&op_, 1}, {}));
  ended.reset();  // Without the lock, because it may block.
  finish(error);
}

bool PairState::hand_over() noexcept {
  try {
    require_watcher();
    return true;
  } catch (...) {
    return false;
  }
}

void PairState::require_watcher() {
  if (forked()) return;
  const auto waiter_threads = waiter_threads_.lock();
  // The group has ended: it has dropped the message, or another thread waits for it.
  if (waiter_threads == nullptr) return;
  // A claim is final, because other threads rely on it. So it is made only when the thread runs.
  const std::lock_guard lock(message_mutex_);
  if (claimed_) return;
  waiter_threads->run([self = shared_from_this(), this] { wait_here(); });
  claimed_ = true;
}

bool PairState::done() const noexcept {
  if (HostState::done()) return true;
  auto& self = const_cast<PairState&>(*this);
  // Without a thread, a later wait() ends the message; after the deadline, this call does.
  if (!self.hand_over() && limit_.expired() && self.claim()) self.wait_here();
  return HostState::done();
}

bool PairState::wait_until(Deadline deadline) {
  if (HostState::done() || forked()) return true;
  if (deadline.time() < limit_.time()) {
    (void)hand_over();
  } else if (claim()) {
    wait_here();
    return true;
  } else {
    deadline = Deadline::none();  // The claiming thread ends the message by limit_.
  }
  return HostState::wait_until(deadline);
}

std::shared_ptr<WorkState> PairState::then(std::function<void()> next) {
  require_watcher();
  return HostState::then(std::move(next));
}

std::shared_ptr<WorkState> PairState::on_done(std::function<void(const Error*)> f) {
  require_watcher();
  return HostState::on_done(std::move(f));
}

void PairState::stop_waiting(const Error& why) noexcept {
  std::shared_ptr<Message> dropped;  // Its destructor may block, so it runs without the lock.
  {
    const std::lock_guard lock(message_mutex_);
    const bool waits = std::exchange(claimed_, true);
    if (waits && message_ != nullptr) {
      instead_ = why;
      message_->cancel();
    }
    if (waits) return;
    dropped = std::move(message_);
  }
  dropped.reset();
  finish(std::make_exception_ptr(why));
}

bool PairState::withdraw(const Error& why) noexcept {
  if (!HostState::done()) stop_waiting(why);
  return true;
}

bool PairState::cancel() noexcept {
  if (HostState::done()) return false;
  stop_waiting(internal::group_destroyed());
  return true;
}

}  // namespace tutti::backend::mesh
