#include <tutti/work.hpp>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/work_state.hpp>
#include <tutti/log.hpp>

#include "values/current_error.hpp"
#include "values/described.hpp"

namespace tutti {

WorkState::~WorkState() = default;
bool WorkState::withdraw(const Error&) noexcept {
  return false;
}
WorkOwner::~WorkOwner() = default;

Work::Work(std::shared_ptr<WorkState> state, std::shared_ptr<WorkOwner> owner,
           std::uint64_t token) noexcept
    : state_(std::move(state)),
      owner_(std::move(owner)),
      token_(token),
      unwinding_(std::uncaught_exceptions()) {}

namespace {

/// True if on_done() has collected `thrown`, which may be null. `seen`: the state to which
/// on_done() added its function; null: on_done() was not called. Continuations pass on the same
/// exception object.
bool is_collected(const std::shared_ptr<WorkState>& seen, const std::exception_ptr& thrown) {
  return seen != nullptr && seen->error() == thrown;
}

void call_with(const std::function<void(const Error*)>& f, const std::exception_ptr& thrown) {
  if (thrown == nullptr) return f(nullptr);
  const Error error = internal::to_error(thrown);
  f(&error);
}

/// Logs an exception of a callback, unless there is no memory for the text.
void log_thrown(const Error& thrown) noexcept {
  try {
    default_logger()(LogLevel::error,
                     std::string("a callback of on_done() threw: ") + thrown.what());
  } catch (const std::bad_alloc&) {
  }
}

/// Calls the function of on_done() and logs an exception that it throws, through the owner if there
/// is one.
void call_guarded(const std::function<void(const Error*)>& f, const Error* error,
                  WorkOwner* owner) noexcept {
  try {
    f(error);
  } catch (...) {
    const Error thrown = internal::to_error(std::current_exception());
    if (owner != nullptr) return owner->callback_threw(thrown);
    log_thrown(thrown);
  }
}

}  // namespace

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    settle();
    state_ = std::move(other.state_);
    owner_ = std::move(other.owner_);
    seen_ = std::move(other.seen_);
    token_ = other.token_;
    unwinding_ = other.unwinding_;
  }
  return *this;
}

void Work::settle() noexcept {
  if (state_ == nullptr) return;
  if (owner_ != nullptr && !state_->done() && std::uncaught_exceptions() > unwinding_)
    owner_->abort("a Work was destroyed while an exception unwound the stack");
  state_->wait_until(Deadline::none());  // The call ends at its own deadline.
  const auto thrown = state_->error();
  if (owner_ != nullptr && !is_collected(seen_, thrown)) {
    owner_->collected(token_, thrown != nullptr);
    if (thrown != nullptr) owner_->uncollected(internal::to_error(thrown));
  }
  state_.reset();
  owner_.reset();
  seen_.reset();
}

void Work::wait() {
  if (state_ == nullptr) return;
  if (!state_->wait_until(Deadline::none()))
    fail(Errc::unsupported,
         "the call was captured into a graph and runs when the graph is launched, so the host "
         "cannot wait for it; use Work::block_stream(stream)");
  // Reset first: a thrown error counts as collected.
  const auto state = std::exchange(state_, nullptr);
  const auto owner = std::exchange(owner_, nullptr);
  seen_.reset();
  const auto thrown = state->error();
  if (owner != nullptr) owner->collected(token_, thrown != nullptr);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

bool Work::wait_until(Deadline deadline) const {
  return state_ == nullptr || state_->wait_until(deadline);
}

bool Work::done() const noexcept {
  return state_ == nullptr || state_->done();
}

std::optional<Error> Work::error() {
  if (state_ == nullptr || !state_->done()) return std::nullopt;
  const auto thrown = state_->error();
  if (thrown == nullptr) return std::nullopt;
  if (owner_ != nullptr) owner_->collected(token_, true);
  owner_.reset();  // Collected. The state stays, so that wait() throws the error.
  return internal::to_error(thrown);
}

void Work::block_stream(Stream stream) {
  if (state_ != nullptr) state_->block_stream(stream);
}

namespace {

/// The state of a Work that then() returned for a Work without a call, after the function threw.
class Failed final : public WorkState, public std::enable_shared_from_this<Failed> {
 public:
  explicit Failed(std::exception_ptr thrown) noexcept : thrown_(std::move(thrown)) {}
  bool done() const noexcept override { return true; }
  bool wait_until(Deadline) override { return true; }
  std::exception_ptr error() const noexcept override { return thrown_; }
  void block_stream(Stream) override {}
  std::shared_ptr<WorkState> then(std::function<void()>) override { return shared_from_this(); }
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
    call_with(f, thrown_);
    return shared_from_this();
  }

 private:
  std::exception_ptr thrown_;
};

}  // namespace

Work Work::then(std::function<void()> next) && {
  if (state_ == nullptr) {
    try {
      next();
    } catch (...) {
      const auto thrown = std::current_exception();
      return internal::without_bad_alloc([&] { return Work(std::make_shared<Failed>(thrown)); });
    }
    return {};
  }
  auto after = internal::without_bad_alloc([&] { return state_->then(std::move(next)); });
  state_.reset();
  Work result(std::move(after), std::move(owner_), token_);
  result.seen_ = std::move(seen_);
  return result;
}

void Work::on_done(std::function<void(const Error*)> f) {
  if (state_ == nullptr) return call_guarded(f, nullptr, nullptr);
  auto after = internal::without_bad_alloc([&] {
    return state_->on_done([f = std::move(f), owner = owner_, token = token_](const Error* error) {
      if (owner != nullptr) owner->collected(token, error != nullptr);
      call_guarded(f, error, owner.get());
    });
  });
  seen_ = std::exchange(state_, std::move(after));
}

/// The callback that detach() adds. Holds the parts of the Work until the call has ended, and
/// reports an error that was not collected.
struct Work::Detached {
  std::shared_ptr<void> keep_alive;  // First, so that it is released last.
  std::shared_ptr<WorkState> state;
  std::shared_ptr<WorkOwner> owner;
  std::shared_ptr<WorkState> seen;
  std::uint64_t token;

  void operator()(const Error* error) const noexcept {
    if (owner == nullptr || is_collected(seen, state->error())) return;
    owner->collected(token, error != nullptr);
    if (error != nullptr) owner->uncollected(*error);
  }
};

void Work::detach(std::shared_ptr<void> keep_alive) && {
  if (state_ == nullptr) return;
  if (state_->done()) return settle();
  try {
    (void)state_->on_done(Detached{keep_alive, state_, owner_, seen_, token_});
  } catch (...) {
    state_->wait_until(Deadline::none());  // The call uses keep_alive.
    throw Error(internal::to_error(std::current_exception()));
  }
  keep_alive.reset();
  state_.reset();
  owner_.reset();
  seen_.reset();
}

namespace {

/// The Work of all parts, done when all are done. Passes an error of a part to that part's group.
class All final : public WorkState, public WorkOwner, public std::enable_shared_from_this<All> {
 public:
  struct Part {
    std::shared_ptr<WorkState> state;
    std::shared_ptr<WorkOwner> owner;
    std::uint64_t token = 0;
    std::shared_ptr<WorkState> seen{};
  };
  explicit All(std::vector<Part> parts) : parts_(std::move(parts)) {}
  /// Adds a part. Does not allocate up to the capacity of the vector.
  void add(Part part) { parts_.push_back(std::move(part)); }

  bool done() const noexcept override {
    for (const auto& part : parts_)
      if (!part.state->done()) return false;
    return true;
  }
  bool wait_until(Deadline deadline) override {
    bool all = true;
    for (const auto& part : parts_) all = part.state->wait_until(deadline) && all;
    return all;
  }
  std::exception_ptr error() const noexcept override {
    for (const auto& part : parts_)
      if (auto thrown = part.state->error()) return thrown;
    return nullptr;
  }
  void block_stream(Stream stream) override {
    for (const auto& part : parts_) part.state->block_stream(stream);
  }
  /// Runs `next` as a continuation of the part that ends last. A failed part is not counted, so
  /// after an error `next` never runs.
  std::shared_ptr<WorkState> then(std::function<void()> next) override {
    auto left = std::make_shared<std::atomic<std::size_t>>(parts_.size());
    auto shared = std::make_shared<std::function<void()>>(std::move(next));
    std::vector<Part> links;
    for (const auto& part : parts_)
      links.push_back({part.state->then([left, shared] {
                         if (left->fetch_sub(1) == 1) (*shared)();
                       }),
                       part.owner, part.token, part.seen});
    return std::make_shared<All>(std::move(links));
  }
  /// Calls `f` on the worker of the part that ends last.
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
    auto left = std::make_shared<std::atomic<std::size_t>>(parts_.size());
    auto shared = std::make_shared<std::function<void(const Error*)>>(std::move(f));
    std::vector<Part> links;
    for (const auto& part : parts_)
      links.push_back({part.state->on_done([left, shared, self = shared_from_this()](const Error*) {
                         if (left->fetch_sub(1) != 1) return;
                         call_with(*shared, self->error());
                         *shared = nullptr;
                       }),
                       part.owner, part.token, part.seen});
    return std::make_shared<All>(std::move(links));
  }

  void collected(std::uint64_t, bool) noexcept override {
    for (const auto& part : parts_)
      if (part.owner != nullptr) part.owner->collected(part.token, part.state->error() != nullptr);
  }
  void uncollected(const Error& error) noexcept override {
    bool of_a_part = false;
    for (const auto& part : parts_) {
      const auto thrown = part.state->error();
      if (thrown == nullptr) continue;
      of_a_part = true;
      if (part.owner != nullptr && !is_collected(part.seen, thrown)) part.owner->uncollected(error);
    }
    if (!of_a_part && parts_.front().owner != nullptr) parts_.front().owner->uncollected(error);
  }
  void callback_threw(const Error& error) noexcept override {
    for (const auto& part : parts_)
      if (part.owner != nullptr) return part.owner->callback_threw(error);
    log_thrown(error);
  }
  void abort(std::string_view why) noexcept override {
    for (const auto& part : parts_)
      if (part.owner != nullptr && !part.state->done()) part.owner->abort(why);
  }

 private:
  std::vector<Part> parts_;  // Not empty.
};

}  // namespace

Work Work::all(std::span<Work> works) {
  const auto is_call = [](const Work& work) { return work.state_ != nullptr; };
  const auto count = std::ranges::count_if(works, is_call);
  if (count == 0) return {};
  // Allocates before it takes the Works, which wait for their calls.
  auto all = internal::without_bad_alloc([&] {
    std::vector<All::Part> parts;
    parts.reserve(static_cast<std::size_t>(count));
    return std::make_shared<All>(std::move(parts));
  });
  for (auto& work : works)
    if (is_call(work))
      all->add(
          {std::move(work.state_), std::move(work.owner_), work.token_, std::move(work.seen_)});
  return Work(all, all);
}

}  // namespace tutti
