#include "support/fake_backend.hpp"

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test {

namespace {

/// A copy of the arguments of launch(), for use after it has returned.
class OwnedCall {
 public:
  OwnedCall(std::span<const Op> ops, const Call& call)
      : ops_(ops.begin(), ops.end()), call_(call), name_(call.name) {
    lists_.reserve(2 * ops_.size());
    for (Op& op : ops_) {
      keep(op.rows);
      keep(op.send_rows);
      op.in.device = {};  // The inner backend takes host memory.
      op.out.device = {};
    }
    call_.name = name_;
    call_.deadline = call.limit();
    call_.stream = {};
    call_.blocking = true;
  }
  OwnedCall(const OwnedCall&) = delete;
  OwnedCall& operator=(const OwnedCall&) = delete;

  std::span<const Op> ops() const { return ops_; }
  const Call& call() const { return call_; }

 private:
  void keep(Rows& rows) {
    if (!rows.listed()) return;
    lists_.emplace_back(rows.list().begin(), rows.list().end());
    rows = Rows(lists_.back());
  }

  std::vector<Op> ops_;
  std::vector<std::vector<std::int64_t>> lists_;
  Call call_;
  std::string name_;
};

/// The result of a call, owned by a kernel: a kernel that owned its stream would join itself.
struct Result {
  FakeEvent ended;
  std::exception_ptr error;  ///< Not touched once `ended` is set.

  /// On the communication stream.
  void run(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    ended.set();
  }
};

}  // namespace

class FakeBackend::State final : public WorkState {
 public:
  State(FakeDevice& device, std::shared_ptr<FakeStream> communication,
        std::shared_ptr<FakeStream> callbacks, FakeFlaws flaws)
      : device_(device),
        communication_(std::move(communication)),
        callbacks_(std::move(callbacks)),
        flaws_(flaws) {}

  bool done() const noexcept override { return result_->ended.done(); }
  bool wait_until(Deadline deadline) override { return result_->ended.wait_until(deadline); }
  std::exception_ptr error() const noexcept override { return done() ? result_->error : nullptr; }
  void block_stream(Stream stream) override {
    if (flaws_.block_stream_does_nothing) return;
    device_.stream(stream).push([call = call_] { call->ended.wait_until(Deadline::none()); });
  }
  std::shared_ptr<WorkState> then(std::function<void()> next) override {
    auto after = std::make_shared<State>(device_, communication_, callbacks_, flaws_);
    after->queue([first = result_, next = std::move(next)] {
      first->ended.wait_until(Deadline::none());
      if (first->error != nullptr) std::rethrow_exception(first->error);
      next();
    });
    return after;
  }

  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
    auto after = std::make_shared<State>(device_, communication_, callbacks_, flaws_);
    after->call_ = call_;
    callbacks_->push([first = result_, result = after->result_, f = std::move(f)]() mutable {
      first->ended.wait_until(Deadline::none());
      try {
        if (first->error != nullptr) std::rethrow_exception(first->error);
        f(nullptr);
      } catch (const Error& error) {
        f(&error);
      }
      f = nullptr;
      result->error = first->error;
      result->ended.set();
    });
    return after;
  }

  /// Ends when `work` has run on the communication stream.
  void queue(std::function<void()> work) {
    communication_->push([result = result_, work = std::move(work)] { result->run(work); });
  }

 private:
  FakeDevice& device_;
  std::shared_ptr<FakeStream> communication_;
  std::shared_ptr<FakeStream> callbacks_;
  FakeFlaws flaws_;
  std::shared_ptr<Result> result_ = std::make_shared<Result>();
  std::shared_ptr<Result> call_ = result_;  ///< The call after which streams are ordered.
};

FakeBackend::FakeBackend(FakeDevice& device, const BackendInit& init, FakeFlaws flaws)
    : device_(device),
      init_(init),
      inner_(choose_backend("local", {}).entry->make(init)),
      flaws_(flaws),
      communication_(std::make_shared<FakeStream>()),
      callbacks_(std::make_shared<FakeStream>()) {}

FakeBackend::~FakeBackend() {
  communication_->synchronize();  // Its kernels use the inner backend.
}

bool FakeBackend::supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept {
  return inner_->supports(operation, dtype, reduce);
}

Work FakeBackend::launch(std::span<const Op> ops, const Call& call) {
  // A verb that does not block cannot throw its own error: the next verb does.
  if (const auto cause = inner_->failure())
    throw Error(Errc::aborted, std::string("the group failed earlier: ") + cause->what());
  if (!flaws_.ignores_call_stream) communication_->wait(device_.stream(call.stream).record());
  auto state = std::make_shared<State>(device_, communication_, callbacks_, flaws_);
  state->queue([this, owned = std::make_shared<const OwnedCall>(ops, call)] {
    inner_->launch(owned->ops(), owned->call()).wait();
  });
  if (flaws_.blocks_the_host) state->wait_until(Deadline::none());
  return Work(std::move(state));
}

void FakeBackend::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  inner_->refuse(ops, call, why);
}

std::unique_ptr<Backend> FakeBackend::split(const SplitInit& init) {
  return std::make_unique<FakeBackend>(device_, init_.part(init), flaws_);
}

void FakeBackend::abort(std::string_view why) noexcept {
  inner_->abort(why);
}

std::optional<Error> FakeBackend::failure() const {
  return inner_->failure();
}

}  // namespace tutti::test
