#include "support/mutants.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/forwarding_backend.hpp>

namespace tutti::test {

namespace {

using Kind = ReduceOp::Kind;

std::byte* bytes_of(const TensorView& view) {
  return static_cast<std::byte*>(view.data);
}

/// Launches other operations than the caller's.
class Rewriter final : public ForwardingBackend {
 public:
  using Rewrite = std::function<void(Op& op)>;
  Rewriter(std::unique_ptr<Backend> inner, Rewrite rewrite)
      : ForwardingBackend(std::move(inner)), rewrite_(std::move(rewrite)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    std::vector<Op> changed(ops.begin(), ops.end());
    for (Op& op : changed) rewrite_(op);
    return inner().launch(changed, call);
  }

 private:
  Rewrite rewrite_;
};

/// Corrupts the results of blocking calls. Not of async calls, which end later.
class Spoiler final : public ForwardingBackend {
 public:
  using Spoil = std::function<void(const Op& op)>;
  Spoiler(std::unique_ptr<Backend> inner, Spoil spoil)
      : ForwardingBackend(std::move(inner)), spoil_(std::move(spoil)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = inner().launch(ops, call);
    if (work.state() == nullptr)
      for (const Op& op : ops) spoil_(op);
    return work;
  }

 private:
  Spoil spoil_;
};

/// Restores the last element of `out`, like a loop that ends one element too early.
class DropsLastElement final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    const TensorView out = ops[0].out;
    const bool drops = call.blocking && out.bytes() != 0;
    std::vector<std::byte> last(size_of(out.dtype));
    const std::size_t at = drops ? out.bytes() - last.size() : 0;
    if (drops) std::memcpy(last.data(), bytes_of(out) + at, last.size());
    Work work = inner().launch(ops, call);
    if (drops) std::memcpy(bytes_of(out) + at, last.data(), last.size());
    return work;
  }
};

/// Blocking collectives return at once; their results come too late.
class ReturnsEarly final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    late_ = {};
    if (ops.size() != 1 || !call.blocking || is_point_to_point(ops[0].kind))
      return inner().launch(ops, call);
    Op op = ops[0];
    // The caller's arrays may be gone by then.
    const auto* in = static_cast<const std::byte*>(op.in.data);
    in_.assign(in, in + op.in.bytes());
    out_.assign(op.out.bytes(), std::byte{0});
    const bool in_place = in == bytes_of(op.out) && in_.size() == out_.size();
    op.in.data = in_.data();
    op.out.data = in_place ? in_.data() : out_.data();
    Call later = call;
    later.blocking = false;
    late_ = inner().launch({&op, 1}, later);
    return {};
  }

 private:
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  Work late_;
};

/// Runs the messages of a batch one after the other.
class SendsBeforeItReceives final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    if (!call.blocking ||
        !std::ranges::all_of(ops, [](const Op& op) { return is_point_to_point(op.kind); }))
      return inner().launch(ops, call);
    for (const Op& op : ops) inner().launch({&op, 1}, call).wait();
    return {};
  }
};

/// Async collectives do not change `out`.
class AsyncMovesNothing final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    if (call.blocking || ops.size() != 1 || is_point_to_point(ops[0].kind))
      return inner().launch(ops, call);
    const Op barrier{};  // Keeps the order.
    return inner().launch({&barrier, 1}, call);
  }
};

/// Of the calls with numbered names, such as "ddp bucket 3", the first one alone moves data.
class MovesTheFirst final : public ForwardingBackend {
 public:
  MovesTheFirst(std::unique_ptr<Backend> inner, std::string name)
      : ForwardingBackend(std::move(inner)), name_(std::move(name)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    if (!call.name.starts_with(name_) || call.name == name_ + "0") return inner().launch(ops, call);
    const Op barrier{};  // Keeps the order.
    return inner().launch({&barrier, 1}, call);
  }

 private:
  std::string name_;
};

Decorate move_the_first(const char* name) {
  return [name](std::unique_ptr<Backend> inner) {
    return std::make_unique<MovesTheFirst>(std::move(inner), name);
  };
}

/// Async collectives have ended when they return.
class AsyncWaits final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = inner().launch(ops, call);
    if (!call.blocking && !is_point_to_point(ops[0].kind)) work.wait();
    return work;
  }
};

/// Ignores timeouts.
class IgnoresTimeout final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    Call now = call;
    const bool ends = call.deadline.is_set() && !call.deadline.is_none();
    now.timeout = ends ? std::chrono::seconds(0) : std::chrono::seconds(3);
    return inner().launch(ops, now);
  }
};

/// Reports failed calls as successful.
class SwallowsErrors final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    try {
      return inner().launch(ops, call);
    } catch (const Error&) {
      return {};
    }
  }
};

/// Changes the then() and on_done() of a Work.
class Callbacks final : public ForwardingBackend {
 public:
  using Callback = std::function<void(const Error*)>;
  using Next = std::function<void()>;
  struct Change {
    std::function<Next(Next)> then = [](Next next) { return next; };
    std::function<Callback(Callback)> on_done = [](Callback f) { return f; };
  };

  Callbacks(std::unique_ptr<Backend> inner, Change change)
      : ForwardingBackend(std::move(inner)), change_(std::move(change)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = inner().launch(ops, call);
    if (work.state() == nullptr) return work;
    return Work(std::make_shared<State>(std::move(work).release(), change_));
  }

 private:
  class State final : public WorkState {
   public:
    State(std::shared_ptr<WorkState> inner, Change change)
        : inner_(std::move(inner)), change_(std::move(change)) {}
    bool done() const noexcept override { return inner_->done(); }
    bool wait_until(Deadline deadline) override { return inner_->wait_until(deadline); }
    std::exception_ptr error() const noexcept override { return inner_->error(); }
    void block_stream(Stream stream) override { inner_->block_stream(stream); }
    std::shared_ptr<WorkState> then(std::function<void()> next) override {
      return inner_->then(change_.then(std::move(next)));
    }
    std::shared_ptr<WorkState> on_done(Callback f) override {
      return inner_->on_done(change_.on_done(std::move(f)));
    }

   private:
    std::shared_ptr<WorkState> inner_;
    Change change_;
  };

  Change change_;
};

/// Runs the functions of then() when its Work is waited for.
class RunsThenLate final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = inner().launch(ops, call);
    if (work.state() == nullptr) return work;
    return Work(std::make_shared<Late>(std::move(work).release(), [] {}));
  }

 private:
  class Late final : public WorkState, public std::enable_shared_from_this<Late> {
   public:
    Late(std::shared_ptr<WorkState> before, std::function<void()> next)
        : before_(std::move(before)), next_(std::move(next)) {}
    bool done() const noexcept override { return done_; }
    bool wait_until(Deadline deadline) override {
      if (!before_->wait_until(deadline)) return false;
      std::call_once(once_, [&] {
        if (before_->error() == nullptr) next_();
        done_ = true;
      });
      return true;
    }
    std::exception_ptr error() const noexcept override { return before_->error(); }
    void block_stream(Stream stream) override { before_->block_stream(stream); }
    std::shared_ptr<WorkState> then(std::function<void()> next) override {
      return std::make_shared<Late>(shared_from_this(), std::move(next));
    }
    std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
      return before_->on_done(std::move(f));
    }

   private:
    std::shared_ptr<WorkState> before_;
    std::function<void()> next_;
    std::once_flag once_;
    std::atomic<bool> done_ = false;
  };
};

Decorate change_callbacks(Callbacks::Change change) {
  return [change = std::move(change)](std::unique_ptr<Backend> inner) {
    return std::make_unique<Callbacks>(std::move(inner), change);
  };
}

Decorate rewrite(Rewriter::Rewrite f) {
  return [f = std::move(f)](std::unique_ptr<Backend> inner) {
    return std::make_unique<Rewriter>(std::move(inner), f);
  };
}

Decorate spoil(Spoiler::Spoil f) {
  return [f = std::move(f)](std::unique_ptr<Backend> inner) {
    return std::make_unique<Spoiler>(std::move(inner), f);
  };
}

template <typename Mutant>
Decorate wrap() {
  return [](std::unique_ptr<Backend> inner) { return std::make_unique<Mutant>(std::move(inner)); };
}

void change_kind(Op& op, Kind from, Kind to) {
  if (op.reduce.kind == from) op.reduce = {to, 1};
}

/// in op inout with the operands exchanged: for a function that does not commute.
struct Exchanged {
  CustomReduce function;
  void* context;
};

void call_exchanged(const void* in, void* inout, std::int64_t count, DType dtype, void* context) {
  const auto& original = *static_cast<const Exchanged*>(context);
  const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
  std::vector<std::byte> lower(bytes);
  std::memcpy(lower.data(), in, bytes);
  original.function(inout, lower.data(), count, dtype, original.context);
  std::memcpy(inout, lower.data(), bytes);
}

/// Async calls need it for longer than the launch takes, so it is kept.
void exchange_operands(Op& op) {
  static std::mutex mutex;
  static std::deque<Exchanged> kept;
  if (op.reduce.kind != Kind::custom) return;
  const std::lock_guard lock(mutex);
  kept.push_back({op.reduce.function, op.reduce.context});
  op.reduce = ReduceOp::custom(call_exchanged, op.reduce.commutative, &kept.back());
}

void lose_imaginary_parts(const Op& op) {
  if (op.out.dtype != DType::complex64) return;
  auto* values = static_cast<std::complex<float>*>(op.out.data);
  for (std::int64_t i = 0; i < op.out.shape.numel(); ++i) values[i].imag(0);
}

void lose_nan(const Op& op) {
  if (op.out.dtype != DType::f32) return;
  if (op.reduce.kind != Kind::min && op.reduce.kind != Kind::max) return;
  auto* values = static_cast<float*>(op.out.data);
  for (std::int64_t i = 0; i < op.out.shape.numel(); ++i)
    if (std::isnan(values[i])) values[i] = 0;
}

void swap_first_and_last_block(const Op& op, int size) {
  const bool gathers = op.kind == Operation::all_gather || op.kind == Operation::all_to_all ||
                       op.kind == Operation::gather;
  if (!gathers || op.out.bytes() == 0 || op.rows[0] != op.rows[size - 1]) return;
  const std::size_t block = static_cast<std::size_t>(op.rows[0]) * op.out.row_bytes();
  std::swap_ranges(bytes_of(op.out), bytes_of(op.out) + block,
                   bytes_of(op.out) + op.out.bytes() - block);
}

std::map<std::string, Decorate> mutants(int rank, int size) {
  const bool last = rank == size - 1;
  static const std::vector<std::byte> zeros(std::size_t{1} << 20);
  return {
      {"wrong_root", rewrite([size](Op& op) {
         if (op.kind == Operation::broadcast) op.root = (op.root + 1) % size;
       })},
      {"sum_instead_of_max", rewrite([](Op& op) { change_kind(op, Kind::max, Kind::sum); })},
      {"avg_does_not_divide", rewrite([](Op& op) { change_kind(op, Kind::avg, Kind::sum); })},
      {"ignores_scale", rewrite([](Op& op) { op.reduce.scale = 1; })},
      {"exclusive_scan_includes_itself", rewrite([](Op& op) {
         if (op.kind == Operation::exclusive_scan) op.kind = Operation::scan;
       })},
      {"skips_last_rank", rewrite([last](Op& op) {
         if (op.kind == Operation::all_reduce && last && op.in.bytes() <= zeros.size())
           op.in.data = zeros.data();
       })},
      {"does_nothing", rewrite([](Op& op) {
         if (op.kind == Operation::all_reduce) op = Op{};  // A barrier keeps the order.
       })},
      {"shifts_output", rewrite([](Op& op) {
         if (op.kind == Operation::all_gather && op.out.bytes() != 0)
           op.out.data = bytes_of(op.out) + size_of(op.out.dtype);
       })},
      {"any_peer_is_rank_1", rewrite([](Op& op) {
         if (op.peer == any_peer) op.peer = 1;
       })},
      {"loses_the_source", rewrite([](Op& op) { op.source = nullptr; })},
      {"ignores_tag", rewrite([](Op& op) { op.tag = 0; })},
      {"corrupts_a_byte_on_last_rank", spoil([last](const Op& op) {
         if (last && op.out.bytes() != 0) bytes_of(op.out)[op.out.bytes() / 2] ^= std::byte{1};
       })},
      {"exchanges_operands_of_custom", rewrite(exchange_operands)},
      {"custom_is_sum", rewrite([](Op& op) { change_kind(op, Kind::custom, Kind::sum); })},
      {"loses_imaginary_parts", spoil(lose_imaginary_parts)},
      {"loses_nan", spoil(lose_nan)},
      {"swaps_blocks", spoil([size](const Op& op) { swap_first_and_last_block(op, size); })},
      {"drops_last_element", wrap<DropsLastElement>()},
      {"returns_early", wrap<ReturnsEarly>()},
      {"sends_before_it_receives", wrap<SendsBeforeItReceives>()},
      {"async_calls_move_nothing", wrap<AsyncMovesNothing>()},
      {"async_calls_wait", wrap<AsyncWaits>()},
      {"ignores_timeout", wrap<IgnoresTimeout>()},
      {"swallows_errors", wrap<SwallowsErrors>()},
      {"reduces_one_bucket", move_the_first("ddp bucket ")},
      {"gathers_one_bucket", move_the_first("ddp parameters ")},
      {"counts_ranks_once", rewrite([](Op& op) {
         if (op.kind == Operation::all_reduce && op.in.dtype == DType::i64)
           change_kind(op, Kind::sum, Kind::max);
       })},
      {"drops_on_done", change_callbacks({.on_done =
                                              [](const Callbacks::Callback&) {
                                                return Callbacks::Callback([](const Error*) {});
                                              }})},
      {"runs_on_done_twice", change_callbacks({.on_done =
                                                   [](Callbacks::Callback f) {
                                                     return Callbacks::Callback(
                                                         [f = std::move(f)](const Error* error) {
                                                           f(error);
                                                           f(error);
                                                         });
                                                   }})},
      {"drops_then",
       change_callbacks({.then = [](const Callbacks::Next&) { return Callbacks::Next([] {}); }})},
      {"runs_then_late", wrap<RunsThenLate>()},
      {"none", wrap<ForwardingBackend>()},
  };
}

}  // namespace

Decorate mutant_of_this_process(int rank, int size) {
  const char* name = std::getenv("TUTTI_TEST_MUTANT");
  if (name == nullptr || *name == '\0') return {};
  const auto all = mutants(rank, size);
  const auto found = all.find(name);
  if (found == all.end()) throw std::invalid_argument(std::string("no such mutant: ") + name);
  return found->second;
}

}  // namespace tutti::test
