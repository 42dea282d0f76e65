#include "pairs.hpp"

#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "group/record.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::mesh {

WaiterThreads::~WaiterThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id())
      thread.detach();  // A continuation destroyed the last reference.
    else
      thread.join();
  }
}

void WaiterThreads::run(std::function<void()> wait) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(wait));
    try {
      if (idle_ < queue_.size()) threads_.emplace_back([this] { work(); });
    } catch (const std::exception& error) {
      queue_.pop_back();
      internal::failf(Errc::resource_exhausted,
                      "cannot start a thread that waits for a send or receive: {}", error.what());
    }
  }
  changed_.notify_one();
}

void WaiterThreads::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    auto wait = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    wait();
    wait = nullptr;
    lock.lock();
  }
}

PairState::PairState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
                     std::weak_ptr<WaiterThreads> waiter_threads, const Op& op, Deadline limit)
    : HostState(std::move(queue)),
      group_(std::move(group)),
      waiter_threads_(std::move(waiter_threads)),
      op_(op),
      limit_(limit) {}

void PairState::post() {
  const bool sends = op_.kind == Operation::send;
  auto bytes = sends ? op_.in.bytes() : op_.out.bytes();
  auto* data = sends ? const_cast<void*>(op_.in.data) : op_.out.data;
  if (bytes == 0) {  // An empty message is compared and waited for like any other.
    data = &token_;
    bytes = 1;
  }
  try {
    message_ = group_->mesh->message(*std::pmr::new_delete_resource(), group_->mesh_rank(op_.peer),
                                     data, bytes, group_->pair_id(op_));
    const auto slot = group_->pair_slot(op_);
    sends ? message_->send(slot) : message_->recv(slot);
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
  claimed_ = true;
  finish(std::move(error));
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
  std::optional<Error> instead;
  {
    const std::lock_guard lock(message_mutex_);
    message_.reset();
    instead = instead_;
  }
  if (transport_error)
    error = std::make_exception_ptr(instead ? *instead
                                            : group_->failed(*transport_error, {&op_, 1}, {}));
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
  if (forked() || claimed_.exchange(true)) return;
  try {
    if (const auto waiter_threads = waiter_threads_.lock())
      return waiter_threads->run([self = shared_from_this(), this] { wait_here(); });
  } catch (...) {
    claimed_ = false;
    throw;
  }
  claimed_ = false;  // The group has ended, and cancels this message.
}

bool PairState::done() const noexcept {
  if (HostState::done()) return true;
  auto& self = const_cast<PairState&>(*this);
  // Without a thread, a later wait() ends the message; after the deadline, this call does.
  if (!self.hand_over() && limit_.expired() && !self.claimed_.exchange(true)) self.wait_here();
  return HostState::done();
}

bool PairState::wait_until(Deadline deadline) {
  if (HostState::done() || forked()) return true;
  if (deadline.time() < limit_.time()) {
    (void)hand_over();
  } else if (!claimed_.exchange(true)) {
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
  const bool mine = !claimed_.exchange(true);
  {
    const std::lock_guard lock(message_mutex_);
    if (mine) message_.reset();
    if (message_ != nullptr) {
      instead_ = why;
      message_->cancel();
    }
  }
  if (mine) finish(std::make_exception_ptr(why));
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
