#include <tutti/ddp/gradient_reducer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <tutti/ddp/hooks.hpp>

#include "ddp/bucket_calls.hpp"
#include "ddp/buffer_broadcast.hpp"
#include "ddp/descriptions.hpp"
#include "ddp/gradient_arrays.hpp"
#include "ddp/layout.hpp"
#include "ddp/row_average.hpp"
#include "ddp/step_state.hpp"
#include "ddp/step_status.hpp"
#include "group/call.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace ddp {
namespace {

/// Bytes, equal on all ranks. On the host, gradients from here on are reduced in the arrays that
/// were marked: two copies of 1 MiB take 0.3 ms, a call of gloo 0.1 ms (docs/performance.md).
constexpr std::size_t large_gradient = 1 << 20;

}  // namespace

struct GradientReducer::Impl {
  Impl(ProcessGroup& g, std::vector<Parameter> p, const ReducerOptions& o, std::vector<Parameter> b,
       int generation = 0)
      : group(g.share()),
        options(o),
        parameters(std::move(p)),
        logger(o.logger ? o.logger : default_logger()),
        on_host(group.memory().device().type == DeviceType::cpu),
        buffers(group, std::move(b), o),
        arrays(group, parameters, assign_buckets(parameters, initial_order(parameters.size()), o),
               call_of(o),
               on_host && !o.gradient_as_bucket_view ? large_gradient
                                                     : std::numeric_limits<std::size_t>::max(),
               generation),
        status(group, parameters, o),
        gradients(parameters.size()),
        marked(parameters.size()),
        used(parameters.size()),
        rebuilds(o.rebuild_buckets && !o.find_unused_parameters),
        calls(group, arrays, gradients, call_of(o), o.arithmetic.get()),
        rows(group, o) {
    set_divisor(o.divisor);
    if (rebuilds) arrived.reserve(parameters.size());
    arrays.broadcast_values(call_of(o));
    buffers.run();
    arrays.wait_for({});
  }

  /// A reducer over `g` that goes on for `old`. Collective.
  Impl(ProcessGroup& g, const Impl& old)
      : Impl(g, old.parameters, old.options, old.buffers.list(), old.arrays.generation() + 1) {
    set_divisor(old.wanted_divisor);
    calls.set_hook(old.calls.hook());
  }
  static CallOptions call_of(const ReducerOptions& o) {
    return {.timeout = o.timeout, .order_fixed = o.order_fixed, .reproducible = o.reproducible};
  }

  void set_divisor(double d) {
    wanted_divisor = d;
    divisor = d == 0 ? group.size() : d;
  }
  std::string name_of(std::size_t id) const { return ddp::name_of(parameters, id); }

  void begin_step();
  void mark(std::size_t id, const TensorView* gradient, Stream producer);
  void mark_locked(std::size_t id, const TensorView* gradient, Stream producer);
  std::string problem_with(std::size_t id, const TensorView* gradient);
  void clear(std::size_t id);
  void launch_full();
  void finish(std::optional<double> more_rows);
  void end_step(const std::string& problem, bool empty);
  void write_back(std::size_t bucket);
  void rebuild();
  void reset();
  void drop_step();
  [[noreturn]] void end_with_mistake(const std::string& what);
  [[noreturn]] void abandon(std::exception_ptr why);
  void end_calls() noexcept;

  ProcessGroup group;
  const ReducerOptions options;
  const std::vector<Parameter> parameters;
  const Logger logger;
  const bool on_host;
  BufferBroadcast buffers;
  GradientArrays arrays;
  StepStatus status;

  std::mutex mutex;  // Serializes marks.
  std::vector<Gradient> gradients;
  MarkedArrays marked;
  std::vector<std::uint8_t> used;  // By id: 1 if any rank had a gradient in the last step.
  Ids arrived;                     // In the order of the marks, until the rebuild.
  bool rebuilds;
  bool in_step = false;
  bool reduced = false;               // The last step ended without an error.
  std::optional<std::string> broken;  // The reason why abandon() has aborted the group.
  std::exception_ptr failed;          // The exception of the last mark.
  std::int64_t step = 0;
  double wanted_divisor = 0;  // 0: the number of ranks.
  double divisor = 1;
  int no_sync = 0;
  BucketCalls calls;  // Declared after the arrays, so that Works end first.
  Work status_work;
  RowAverage rows;
};

/// Returns an error text if a mark is wrong; otherwise notes the array and returns an empty text.
/// A null gradient means mark_unused().
std::string GradientReducer::Impl::problem_with(std::size_t id, const TensorView* gradient) {
  if (id >= parameters.size())
    return fmt::format("parameter {} was marked; the reducer has {} parameters, numbered from 0",
                       id, parameters.size());
  if (gradients[id].mark != Mark::none)
    return fmt::format(
        "{} was marked twice; mark it once per step, and use no_sync() to accumulate", name_of(id));
  if (gradient == nullptr) return {};
  auto problem = arrays.problem_with(id, *gradient, options.gradient_as_bucket_view);
  if (!problem.empty() || !on_host || calls.has_hook() || gradient->bytes() == 0 ||
      gradient->data == arrays.gradient(id).data)
    return problem;
  if (const auto other = marked.add(id, *gradient, arrays.is_large(id)))
    return fmt::format(
        "the gradient of {} overlaps that of {}, which was marked before it; a gradient of {} "
        "bytes or more needs memory of its own until finish()",
        name_of(id), name_of(*other), large_gradient);
  return {};
}

void GradientReducer::Impl::begin_step() {
  if (broken)
    internal::failf(Errc::aborted,
                    "GradientReducer: the group is broken, make a new one; first cause: {}",
                    *broken);
  in_step = true;
  if (reduced)
    for (Gradient& gradient : gradients) gradient.in_place = false;
  reduced = false;
  failed = nullptr;
}

void GradientReducer::Impl::mark(std::size_t id, const TensorView* gradient, Stream producer) {
  const std::lock_guard lock(mutex);
  if (no_sync > 0) return;
  begin_step();
  try {
    mark_locked(id, gradient, producer);
  } catch (...) {
    failed = std::current_exception();
    throw;
  }
}

void GradientReducer::Impl::mark_locked(std::size_t id, const TensorView* gradient,
                                        Stream producer) {
  if (const auto problem = problem_with(id, gradient); !problem.empty()) end_with_mistake(problem);
  Gradient& mine = gradients[id];
  if (gradient == nullptr) {
    mine.mark = Mark::unused;
    clear(id);
  } else {
    const TensorView place = arrays.gradient(id);
    const bool moves = gradient->data != place.data && place.bytes() != 0;
    Launch& bucket = calls.of(id);
    if (!bucket.stream) bucket.stream = producer;
    if (!on_host && mine.producer && !(*mine.producer == producer)) arrays.wait_for(*mine.producer);
    mine.in_place = moves && !calls.has_hook() && arrays.is_large(id);
    if (moves && !mine.in_place) arrays.copy(place.data, gradient->data, place.bytes(), producer);
    if (!on_host && !(*bucket.stream == producer)) arrays.wait_for(producer);
    mine.mark = Mark::ready;
    mine.array = moves ? *gradient : TensorView();
    mine.producer = producer;
    if (rebuilds) arrived.push_back(id);
  }
  --calls.of(id).left;
  launch_full();
}

/// Sets to zero a gradient that this rank does not have.
void GradientReducer::Impl::clear(std::size_t id) {
  arrays.clear(id, gradients[id].producer.value_or(Stream{}));
}

void GradientReducer::Impl::launch_full() {
  try {
    calls.launch_full(step, divisor);
  } catch (...) {
    // Peers may wait in a collective of the hook that this rank will not call.
    abandon(std::current_exception());
  }
}

void GradientReducer::Impl::finish(std::optional<double> more_rows) {
  if (more_rows || no_sync > 0) rows.add(more_rows);
  if (no_sync > 0) return;
  if (!in_step && failed != nullptr) {
    rows.reset();
    std::rethrow_exception(std::exchange(failed, nullptr));
  }
  begin_step();
  if (const std::string why = rows.problem(more_rows.has_value()); !why.empty())
    end_with_mistake(why);
  if (!options.find_unused_parameters) {
    std::size_t missing = 0;
    std::size_t first = 0;
    for (std::size_t id = gradients.size(); id-- > 0;) {
      if (gradients[id].mark != Mark::none) continue;
      first = id;
      ++missing;
    }
    if (missing != 0)
      end_with_mistake(fmt::format(
          "{}{} {} no gradient; mark each as ready or unused, or set find_unused_parameters where "
          "ranks may differ",
          name_of(first), missing > 1 ? fmt::format(" and {} more", missing - 1) : "",
          missing > 1 ? "have" : "has"));
  }
  end_step({}, false);
}

/// Ends the step on all ranks, or aborts the group if steps exchange no status; then throws this
/// rank's mistake.
void GradientReducer::Impl::end_with_mistake(const std::string& what) {
  const auto problem = fmt::format("step {}: {}", step, what);
  const Error mistake(Errc::invalid_argument, "GradientReducer: " + problem);
  if (!status.is_exchanged()) {
    group.abort(mistake.message());
    abandon(std::make_exception_ptr(mistake));
  }
  try {
    end_step(problem, false);
  } catch (...) {
    // Ignored: the mistake is the error that the caller can correct. A broken group's next call
    // throws.
  }
  throw mistake;
}

void GradientReducer::Impl::end_step(const std::string& problem, bool empty) {
  for (std::size_t id = 0; id < gradients.size(); ++id) {
    used[id] = gradients[id].mark == Mark::ready;
    if (gradients[id].mark != Mark::none) continue;
    clear(id);
    --calls.of(id).left;
  }
  launch_full();
  std::string error;
  try {
    if (rows.is_on()) rows.launch(problem.empty() && !empty);
    if (status.is_exchanged()) status_work = status.launch(used, !problem.empty(), empty);
    rows.work().wait();
    for (std::size_t i = 0; i < calls.all().size(); ++i) {
      if (on_host) calls.all()[i].wait();
      write_back(i);
    }
    if (status.is_exchanged()) {
      status_work.wait();
      error = status.read(problem);
      calls.wait();
    }
  } catch (...) {
    abandon(std::current_exception());
  }
  ++step;
  if (error.empty()) {
    for (std::size_t id = 0; id < used.size(); ++id)
      used[id] = status.is_exchanged() ? status.is_used(id) : empty || used[id];
    if (rebuilds) {
      try {
        rebuild();
      } catch (...) {
        abandon(std::current_exception());
      }
    }
    reduced = true;
    return reset();
  }
  reset();
  throw Error(Errc::mismatch, "GradientReducer: " + error);
}

/// Copies the results to the gradients, and before that to the bucket if the hook has replaced its
/// array. With average_over_rows, divides them by the rows instead of the divisor.
void GradientReducer::Impl::write_back(std::size_t index) {
  Bucket& bucket = arrays.buckets()[index];
  TensorView own = bucket.buffer();
  own.data = arrays.gradient(bucket.slices().front().id).data;
  const bool replaced = bucket.buffer().data != own.data;
  Launch& launch = calls.all()[index];
  const Stream of_hook = bucket.call().stream;  // The hook may have put work on it.
  const auto producer_of = [&](std::size_t i) {
    return gradients[bucket.slices()[i].id].producer.value_or(Stream{});
  };
  std::optional<Stream> blocked;
  for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
    const std::size_t id = bucket.slices()[i].id;
    const Gradient& mine = gradients[id];
    if (mine.mark != Mark::ready) {
      if (!on_host) {
        launch.wait();  // No stream of the program waits for this gradient.
        if (calls.has_hook()) arrays.wait_for(of_hook);
      }
      if (!replaced && !rows.is_on()) continue;
    }
    const Stream stream = producer_of(i);
    if (!on_host && mine.mark == Mark::ready && !(blocked == stream)) {
      for (Work& work : launch.works) work.block_stream(stream);
      if (calls.has_hook() && !(of_hook == stream)) arrays.wait_for(of_hook);
      blocked = stream;
    }
    const TensorView& place = arrays.gradient(id);
    if (replaced && place.bytes() != 0) {
      arrays.copy(place.data, bucket.gradient(i).data, place.bytes(), stream);
    }
    if (rows.is_on()) rows.divide(mine.in_place ? mine.array : place, bucket.divisor());
    if (mine.mark != Mark::ready || mine.array.data == nullptr || mine.in_place) continue;
    arrays.copy(mine.array.data, place.data, place.bytes(), stream);
  }
  if (!replaced) return;
  for (std::size_t i = 0; !on_host && i < bucket.slices().size(); ++i)  // Before the owner goes.
    if (i == 0 || !(producer_of(i) == producer_of(i - 1))) arrays.wait_for(producer_of(i));
  bucket.set_buffer(own);
}

void GradientReducer::Impl::rebuild() {
  const Ids order = broadcast_order(group, arrived, parameters.size(), options);
  if (!on_host)
    for (Gradient& gradient : gradients) arrays.wait_for(gradient.producer.value_or(Stream{}));
  calls.wait();
  arrays.rearrange(assign_buckets(parameters, order, options));
  calls.renew();
  rebuilds = false;
}

void GradientReducer::Impl::reset() {
  in_step = false;
  rows.reset();
  arrived.clear();
  marked.clear();
  for (Gradient& gradient : gradients) {
    gradient.mark = Mark::none;
    if (!reduced) gradient.in_place = false;
    if (!gradient.in_place) gradient.array = {};
  }
  calls.reset();
}

/// Ends the calls under way after an error of a call or a hook, and throws it.
void GradientReducer::Impl::abandon(std::exception_ptr why) {
  try {
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      broken = error.what();
    } catch (...) {
      broken = "the hook threw";
    }
  } catch (const std::bad_alloc&) {
    broken.emplace();
  }
  end_calls();
  std::rethrow_exception(why);
}

/// Aborts the group with the reason in `broken`, and waits for the calls under way.
void GradientReducer::Impl::end_calls() noexcept {
  const auto text = tutti::internal::described(Errc::aborted, [&] {
    return Error(Errc::aborted, fmt::format("GradientReducer: step {}: {}", step, *broken));
  });
  group.abort(text.message());
  const auto collect = [](Work& work) {
    try {
      work.wait();
    } catch (...) {  // The first error counts.
    }
  };
  for (Launch& launch : calls.all()) std::ranges::for_each(launch.works, collect);
  collect(status_work);
  collect(rows.work());
  in_step = false;
}

/// Drops an unfinished step: its calls use the arrays no more.
void GradientReducer::Impl::drop_step() {
  if (!in_step) return;
  broken = "set_group() was called within the step";
  end_calls();
}

namespace {

/// Collective. Checks the arguments of a reducer, and compares those of all ranks.
void start(ProcessGroup& group, std::span<const Parameter> parameters,
           std::span<const Parameter> buffers, const ReducerOptions& options) {
  compare_descriptions(group, parameters, buffers, options);
  if (const Device device = group.memory().device();
      options.average_over_rows && device.type != DeviceType::cpu)
    internal::failf(Errc::unsupported,
                    "GradientReducer: average_over_rows takes gradients in host memory, and the "
                    "group works on {}; mark sums, and call set_divisor() with the number of all "
                    "rows before the first mark",
                    to_string(device));
}

}  // namespace
}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

GradientReducer::GradientReducer(ProcessGroup& group, std::vector<Parameter> parameters,
                                 const ReducerOptions& options,
                                 std::vector<Parameter> buffers) try {
  start(group, parameters, buffers, options);
  impl_ = std::make_unique<Impl>(group, std::move(parameters), options, std::move(buffers));
} catch (...) {
  internal::end_calls(group);
}

GradientReducer::~GradientReducer() {
  if (!impl_->in_step) return;
  const auto why = tutti::internal::described(Errc::aborted, [&] {
    return Error(Errc::aborted,
                 fmt::format("a GradientReducer was destroyed within step {}, without finish()",
                             impl_->step));
  });
  impl_->group.abort(why.message());
}

void GradientReducer::mark_ready(std::size_t id, const TensorView& gradient, Stream producer) try {
  impl_->mark(id, &gradient, producer);
} catch (...) {
  internal::end_calls(impl_->group);
}

void GradientReducer::mark_unused(std::size_t id) try {
  impl_->mark(id, nullptr, {});
} catch (...) {
  internal::end_calls(impl_->group);
}

void GradientReducer::finish() try { impl_->finish({}); } catch (...) {
  internal::end_calls(impl_->group);
}

void GradientReducer::finish(double rows) try { impl_->finish(rows); } catch (...) {
  internal::end_calls(impl_->group);
}

void GradientReducer::step_empty() try {
  if (impl_->in_step)
    impl_->end_with_mistake("step_empty() after a mark; call finish() in a step with gradients");
  impl_->begin_step();
  impl_->end_step({}, true);
} catch (...) {
  internal::end_calls(impl_->group);
}

GradientReducer::NoSync GradientReducer::no_sync() {
  if (impl_->in_step)
    internal::failf(Errc::invalid_argument,
                    "GradientReducer::no_sync was called during step {}; call finish() first",
                    impl_->step);
  return NoSync(impl_->no_sync);
}

void GradientReducer::broadcast_buffers(Stream stream) try {
  impl_->buffers.run(stream);
} catch (...) {
  internal::end_calls(impl_->group);
}

void GradientReducer::set_hook(CommHook hook, const HookWrapper& wrapper) {
  if (!hook) return;
  if (impl_->in_step)
    internal::failf(Errc::invalid_argument,
                    "GradientReducer::set_hook was called during step {}; call finish() first",
                    impl_->step);
  if (wrapper) {
    hook = wrapper(std::move(hook));
    if (!hook)
      internal::failf(Errc::invalid_argument,
                      "GradientReducer::set_hook: the wrapper returned a null hook");
    if (impl_->group.rank() == 0)
      impl_->logger(LogLevel::info, "GradientReducer: a wrapper was applied to the hook");
  }
  impl_->calls.wait();  // Works may still use the old hook.
  impl_->calls.set_hook(std::move(hook));
}

void GradientReducer::set_group(ProcessGroup& group) try {
  if (impl_->no_sync > 0)
    internal::failf(Errc::invalid_argument,
                    "GradientReducer::set_group was called within no_sync(); end the scope first");
  impl_->drop_step();
  start(group, impl_->parameters, impl_->buffers.list(), impl_->options);
  impl_ = std::make_unique<Impl>(group, *impl_);
} catch (...) {
  internal::end_calls(group);
}

void GradientReducer::set_divisor(double divisor) {
  if (!(divisor >= 0) || std::isinf(divisor))
    internal::failf(Errc::invalid_argument,
                    "GradientReducer::set_divisor: divisor is {}; it must be > 0, or 0 for the "
                    "number of ranks",
                    divisor);
  impl_->set_divisor(divisor);
}

TensorView GradientReducer::gradient(std::size_t id) const {
  if (id >= impl_->parameters.size())
    internal::failf(Errc::invalid_argument,
                    "GradientReducer::gradient: there is no parameter {}; the reducer has {} "
                    "parameters, numbered from 0",
                    id, impl_->parameters.size());
  // Marks on other threads change what follows.
  if (impl_->options.gradient_as_bucket_view) return impl_->arrays.gradient(id);
  const Gradient& gradient = impl_->gradients[id];
  return impl_->reduced && gradient.in_place ? gradient.array : impl_->arrays.gradient(id);
}

bool GradientReducer::is_reduced() const noexcept {
  return impl_->reduced;
}

bool GradientReducer::is_used(std::size_t id) const {
  return impl_->used.at(id) != 0;
}

std::span<const Parameter> GradientReducer::parameters() const noexcept {
  return impl_->parameters;
}

std::span<const Bucket> GradientReducer::buckets() const noexcept {
  return impl_->arrays.buckets();
}

}  // namespace ddp
}  // namespace tutti
