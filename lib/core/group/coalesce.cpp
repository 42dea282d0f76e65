#include <tutti/coalesce.hpp>

#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/record.hpp"
#include "backend/row_lists.hpp"
#include "group/core.hpp"
#include "values/current_error.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace {

/// The state of the Works of all collected calls on one group. After launch() it forwards to the
/// state of the launch.
class Collected final : public WorkState {
 public:
  void launched(std::shared_ptr<WorkState> state) {
    const std::lock_guard lock(mutex_);
    state_ = std::move(state);
    launched_ = true;
  }
  void refused(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(error);
  }
  void abandoned() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }

  bool done() const noexcept override {
    const std::lock_guard lock(mutex_);
    return abandoned_ || refusal_ != nullptr ||
           (launched_ && (state_ == nullptr || state_->done()));
  }
  bool wait_until(Deadline deadline) override {
    // Work::wait() throws error() before the launch; a wait with a deadline says "not yet".
    if (!done() && get() == nullptr) return deadline.is_none();
    const auto state = get();
    return state == nullptr || state->wait_until(deadline);
  }
  std::exception_ptr error() const noexcept override {
    const std::lock_guard lock(mutex_);
    if (refusal_ != nullptr) return refusal_;
    if (!launched_)
      return std::make_exception_ptr(internal::described(Errc::invalid_argument, [&] {
        return Error(Errc::invalid_argument,
                     abandoned_ ? "the Coalesce of this call ended without launch()"
                                : "the Coalesce of this call has not been launched; call launch() "
                                  "before waiting");
      }));
    return state_ == nullptr ? nullptr : state_->error();
  }
  void block_stream(Stream stream) override {
    if (const auto state = get()) state->block_stream(stream);
  }
  std::shared_ptr<WorkState> then(std::function<void()>) override {
    fail(Errc::unsupported,
         "then() was called on the Work of a call inside a Coalesce; call it on the Work of "
         "launch()");
  }
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)>) override {
    fail(Errc::unsupported,
         "on_done() or detach() was called on the Work of a call inside a Coalesce; call it on the "
         "Work of launch()");
  }

 private:
  std::shared_ptr<WorkState> get() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  mutable std::mutex mutex_;
  std::shared_ptr<WorkState> state_;
  std::exception_ptr refusal_;
  bool launched_ = false;
  bool abandoned_ = false;
};

/// The collected calls on one group.
class Batch final : public internal::Collector {
 public:
  explicit Batch(std::shared_ptr<internal::Core> core) : core_(std::move(core)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() override { close(); }

  Work collect(std::span<const Op> ops, const CallOptions& options, bool in_order) override {
    if (!options_) {
      options_ = options;
      name_ = options.name;
      options_->name = name_;
    }
    options_->order_fixed = options_->order_fixed || options.order_fixed;
    in_order_ = in_order_ || in_order;
    for (const auto& op : ops) {
      auto& kept = rows_.emplace_back();  // A deque: addresses stay.
      ops_.push_back(op);
      internal::reserve_row_lists(std::span(&op, 1), kept);
      internal::copy_row_lists(ops_.back(), kept);
    }
    return Work(state_);
  }

  bool has(const Work& work) const noexcept { return work.state() == state_; }
  bool open() {
    internal::Collector* none = nullptr;
    if (!core_->collector.compare_exchange_strong(none, this)) return false;
    core_->collecting_on = std::this_thread::get_id();
    open_ = true;
    return true;
  }
  void close() noexcept {
    if (!std::exchange(open_, false)) return;
    core_->collecting_on = std::thread::id();
    core_->collector = nullptr;
  }

  Work launch() {
    if (ops_.empty()) {
      state_->launched(nullptr);
      return {};
    }
    try {
      Work work = core_->launch(ops_, *options_, in_order_);
      state_->launched(work.state());
      launched_ = true;
      return work;
    } catch (const Error&) {  // Refused on all ranks, or the group is broken: needs no abandon().
      state_->refused(std::current_exception());
      launched_ = true;
      throw;
    }
  }

  /// `thrown`: the error that the program already has, or null.
  void abandon(const Error* thrown = nullptr) noexcept {
    if (launched_) return;
    state_->abandoned();
    if (ops_.empty()) return;
    if (thrown != nullptr) return core_->break_with(*thrown, false);
    const auto why = internal::described(Errc::invalid_argument, [&] {
      return Error(Errc::invalid_argument,
                   fmt::format("a Coalesce of {} calls on group '{}' ended without launch(); "
                               "nothing was sent",
                               ops_.size(), core_->options().name));
    });
    core_->break_with(why, true);
  }

 private:
  std::shared_ptr<internal::Core> core_;
  bool open_ = false;
  std::vector<Op> ops_;
  std::deque<std::vector<std::int64_t>> rows_;
  std::optional<CallOptions> options_;
  std::string name_;
  bool in_order_ = false;
  bool launched_ = false;
  std::shared_ptr<Collected> state_ = std::make_shared<Collected>();
};

}  // namespace

struct Coalesce::Impl {
  std::deque<Batch> batches;  // A deque: the groups have pointers to the batches.
  bool launched = false;
};

Coalesce::Coalesce(std::span<ProcessGroup* const> groups) try : impl_(std::make_unique<Impl>()) {
  for (auto* group : groups) {
    if (group == nullptr) fail(Errc::not_initialized, "Coalesce: a group is null");
    if (!impl_->batches.emplace_back(internal::Core::of(*group).shared_from_this()).open())
      internal::failf(Errc::invalid_argument,
                      "Coalesce: group '{}' is already collecting calls for another Coalesce; call "
                      "launch() of that one first",
                      group->name());
  }
} catch (const std::bad_alloc&) {
  // Peers may wait for the call that this rank cannot collect.
  for (auto* group : groups)
    if (group != nullptr) internal::Core::of(*group).break_with(internal::out_of_memory(), false);
  throw Error(internal::out_of_memory());
}

Coalesce::~Coalesce() {
  if (impl_->launched) return;
  for (auto& batch : impl_->batches) {
    batch.close();
    batch.abandon();
  }
}

void Coalesce::add(Work collected) {
  const auto is_its = [&](const Batch& batch) { return batch.has(collected); };
  if (impl_->launched || std::ranges::none_of(impl_->batches, is_its))
    fail(Errc::invalid_argument,
         "Coalesce: add() takes the Work of an async call that this Coalesce has collected: one of "
         "its groups, on this thread, before launch()");
}

Work Coalesce::launch() {
  if (std::exchange(impl_->launched, true))
    fail(Errc::invalid_argument, "Coalesce: launch() was already called; make a new Coalesce");
  for (auto& batch : impl_->batches) batch.close();
  return internal::without_bad_alloc([&] {
    std::vector<Work> works;
    try {
      works.reserve(impl_->batches.size());
      for (auto& batch : impl_->batches) works.push_back(batch.launch());
    } catch (...) {
      // Breaks the remaining groups: their peers make a call that this rank will not make.
      const Error error = internal::to_error(std::current_exception());
      const bool lacks = error.code() == Errc::resource_exhausted;
      for (auto& rest : impl_->batches) rest.abandon(lacks ? &error : nullptr);
      throw;
    }
    return Work::all(works);
  });
}

}  // namespace tutti
