#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <tuple>
#include <utility>

#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::cuda {

using namespace std::chrono_literals;

Message::Message(std::shared_ptr<internal::CallQueue> queue, StreamPoint ready, const Op& op,
                 const Call& call, Deadline limit)
    : HostState(std::move(queue)),
      ready_(std::move(ready)),
      op_(op),
      name_(call.name),
      call_(call) {
  call_.stream = {};
  call_.deadline = limit;
  call_.in_order = false;
  call_.blocking = false;
  call_.name = name_;
}

void Message::advance(Backend& host, const Staging& staging) {
  if (step_ == Step::waits) {
    if (!ready_->done()) {
      if (const auto cause = host.failure()) throw internal::broken(*cause);
      if (call_.deadline.expired()) tutti::fail(Errc::timeout, late_text);
      return;
    }
    stage_.emplace(staging, op_);
    step_ = Step::to_host;
  }
  if (step_ == Step::to_host) {
    if (!stage_->ready()) return;
    const Op op = stage_->on_host(op_);
    carried_ = host.launch({&op, 1}, call_);
    step_ = Step::carried;
  }
  if (step_ == Step::carried) {
    if (!carried_.done()) return;
    carried_.wait();  // Throws the error of the message.
    stage_->bring_back(op_);
    step_ = Step::back;
  }
  if (!stage_->ready()) return;
  stage_.reset();  // Before the call ends: the next call may reuse the memory at once.
  finish(nullptr);
}

Messages::Messages(Backend& host, const Staging& staging, Failed failed)
    : host_(host), staging_(staging), failed_(std::move(failed)) {}

void Messages::post(std::shared_ptr<Message> message) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { work(); });
      } catch (const std::system_error& error) {
        internal::failf(Errc::resource_exhausted, "cannot start the thread for messages: {}",
                        error.what());
      }
    }
    posted_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void Messages::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Messages::work() {
  using Clock = std::chrono::steady_clock;
  auto active = Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // A message that has just begun is likely to end soon.
      const auto pause =
          std::clamp<std::chrono::nanoseconds>((Clock::now() - active) / 8, 10us, 2ms);
      const auto woken = [this] { return stop_ || !posted_.empty(); };
      if (pending_.empty())
        changed_.wait(lock, woken);
      else
        changed_.wait_for(lock, pause, woken);
      if (!posted_.empty()) active = Clock::now();
      for (auto& message : posted_) pending_.push_back(std::move(message));
      posted_.clear();
      if (stop_) break;
    }
    if (attend()) active = Clock::now();
  }
  const Error gone(Errc::aborted, "the group has been destroyed");
  for (const auto& message : pending_) message->finish(std::make_exception_ptr(gone));
  pending_.clear();
}

bool Messages::attend() {
  bool changed = false;
  // Messages of one direction, peer and tag are passed to the host's backend in the order of their
  // numbers.
  std::vector<std::tuple<bool, int, int>> behind;
  for (const auto& message : pending_) {
    const auto& op = message->op();
    const auto key = std::tuple(op.kind == Operation::send, op.peer, op.tag);
    const bool before = message->launched();
    if (!before && std::ranges::find(behind, key) != behind.end()) continue;
    try {
      message->advance(host_, staging_);
    } catch (...) {
      const Error why = internal::to_error(std::current_exception());
      message->finish(std::make_exception_ptr(failed_(why, *message)));
    }
    if (!message->done() && !message->launched()) behind.push_back(key);
    changed = changed || message->done() || message->launched() != before;
  }
  std::erase_if(pending_, [](const auto& message) { return message->done(); });
  return changed;
}

}  // namespace tutti::backend::cuda
