#include <tutti/ddp/power_sgd.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/ddp/hooks.hpp>
#include <tutti/gather.hpp>

#include "ddp/kept_arrays.hpp"
#include "ddp/power_sgd_plan.hpp"
#include "ddp/segments.hpp"
#include "group/call.hpp"
#include "values/fail.hpp"
#include "values/saved_state.hpp"

namespace tutti {
namespace ddp {

using internal::failf;

namespace {

constexpr std::string_view power_sgd_magic = "tuttiPS1";
constexpr std::string_view power_sgd_text = "saved state of PowerSGD";

enum class Form : std::uint8_t { none, per_tensor, batched };

constexpr std::string_view name_of(Form form) noexcept {
  return form == Form::batched ? "batched_power_sgd_hook" : "power_sgd_hook";
}

/// Marks the keys of errors in the padding of batched matrices. Parameter ids are smaller.
constexpr std::uint64_t filling = std::uint64_t{1} << 63;

/// Calls f(host view) for an array of the plan. An array on a device is copied, and written back if
/// `writes` is set.
template <typename F>
auto on_host(const Plan& plan, const TensorView& array, bool writes, const F& f) {
  if (plan.device == nullptr || array.bytes() == 0)
    return f(TensorView(array.data, array.dtype, array.shape));
  Tensor copy(host_memory(), array.shape, array.dtype);
  plan.memory->copy(copy.data(), array.data, array.bytes(), plan.stream);
  const auto result = f(copy.view());
  if (writes) plan.memory->copy(array.data, copy.data(), array.bytes(), plan.stream);
  return result;
}
void put(KeptArrays& kept, std::uint64_t key, const Plan& plan, const TensorView& array) {
  on_host(plan, array, false, [&](const TensorView& view) {
    kept.put(key, view);
    return true;
  });
}

std::int64_t end_of(std::span<const Segment> segments) {
  return segments.empty() ? 0 : segments.back().at + segments.back().count;
}

}  // namespace

struct PowerSgdState::Impl {
  PowerSgdOptions options;
  Form form = Form::none;
  std::int64_t step = 0;
  KeptArrays errors;  // By parameter id, without parameters that are in a plan.
  KeptArrays factors;
  std::vector<std::unique_ptr<Plan>> plans;  // Indexed by Bucket::index().

  void add_matrices(Plan& plan, const Bucket& bucket) const;
  std::unique_ptr<Plan> make_plan(const Bucket& bucket);
  void keep(Plan& plan, std::size_t index, KeptArrays& of_errors, KeptArrays& of_factors) const;
  Plan& plan_of(const Bucket& bucket);
  Work run(Form wanted, Bucket& bucket);
};

/// Decides which gradients are compressed, and assigns their places in the plan's arrays.
void PowerSgdState::Impl::add_matrices(Plan& plan, const Bucket& bucket) const {
  std::int64_t compressed = 0;
  std::int64_t left = 0;
  for (const Slice& slice : bucket.slices()) {
    const std::int64_t count = slice.shape.numel();
    if (count == 0) continue;
    Matrix matrix{slice.id, compressed, slice.shape.rows(), slice.shape.row_numel()};
    const auto smaller = std::min(matrix.rows, matrix.columns);
    matrix.rank = static_cast<int>(std::min<std::int64_t>(smaller, options.rank));
    const auto thin = static_cast<double>((matrix.rows + matrix.columns) * matrix.rank);
    const bool shrinks = thin * options.min_compression_rate < static_cast<double>(count);
    if (form == Form::batched || shrinks) {
      plan.compressed.push_back({slice.id, slice.offset, compressed, count});
      compressed += count;
    } else {
      plan.rest.push_back({slice.id, slice.offset, left, count});
      left += count;
    }
    if (form == Form::per_tensor && shrinks) plan.matrices.push_back(matrix);
  }
  if (form == Form::batched && compressed != 0) {
    auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(compressed)));
    while (side * side < compressed) ++side;
    plan.matrices.push_back({static_cast<std::size_t>(bucket.index()), 0, side, side,
                             static_cast<int>(std::min<std::int64_t>(side, options.rank))});
  }
  std::int64_t p = 0;
  std::int64_t q = 0;
  for (Matrix& matrix : plan.matrices) {
    matrix.p = std::exchange(p, p + matrix.rows * matrix.rank);
    matrix.q = std::exchange(q, q + matrix.columns * matrix.rank);
  }
  for (Segment& segment : plan.rest) segment.at += p;
  plan.sent_numel = p + left;
}

std::unique_ptr<Plan> PowerSgdState::Impl::make_plan(const Bucket& bucket) {
  auto plan = std::make_unique<Plan>();
  plan->group = bucket.group().share();
  plan->generation = bucket.generation();
  plan->options = &options;
  plan->slices = bucket.slices();
  add_matrices(*plan, bucket);
  std::int64_t elements = 0;
  std::int64_t of_q = 0;
  std::int64_t of_row = 0;
  for (const Matrix& matrix : plan->matrices) {
    elements += matrix.rows * matrix.columns;
    of_q += matrix.columns * matrix.rank;
    of_row = std::max(of_row, is_on_device(bucket) ? matrix.rows * matrix.columns : matrix.columns);
  }
  plan->memory = &bucket.group().memory();
  plan->stream = bucket.call().stream;
  if (is_on_device(bucket)) plan->device = bucket.arithmetic();
  const auto make = [&](std::int64_t count) {
    Tensor array(*plan->memory, Shape::vector(count), compute_dtype(bucket.buffer().dtype),
                 plan->stream);
    if (plan->device == nullptr) {
      std::memset(array.data(), 0, array.bytes());
    } else if (array.bytes() != 0) {
      const std::vector<std::byte> zeros(array.bytes());
      plan->memory->copy(array.data(), zeros.data(), zeros.size(), plan->stream);
    }
    return array;
  };
  plan->m = make(elements);
  const auto make_summed = [&](std::int64_t count) {
    const DType dtype = bucket.buffer().dtype;
    Summed sum{make(count), {}, bucket.group().size()};
    if (dtype != sum.array.dtype())
      sum.narrow = Tensor(*plan->memory, Shape::vector(count), dtype, plan->stream);
    return sum;
  };
  plan->sent = make_summed(plan->sent_numel);
  plan->q = make_summed(of_q);
  plan->row = make(of_row);
  if (plan->device != nullptr) plan->refill = make(of_q);

  for (const Segment& s : plan->compressed)
    on_host(*plan, part(plan->m, s.at, s.count), true, [&](const TensorView& view) {
      return errors.take_or_throw(s.id, view, "the error of parameter");
    });
  const auto used = end_of(plan->compressed);
  on_host(*plan, part(plan->m, used, elements - used), true, [&](const TensorView& view) {
    return errors.take(filling | static_cast<std::uint64_t>(bucket.index()), view);
  });
  for (Matrix& matrix : plan->matrices) {
    const TensorView q = part(plan->q.array, matrix.q, matrix.columns * matrix.rank);
    matrix.has_q = on_host(*plan, q, true, [&](const TensorView& view) {
      // A rebuilt bucket is another matrix, so its Q may have another size.
      return form == Form::batched ? factors.take(matrix.id, view)
                                   : factors.take_or_throw(matrix.id, view, "Q of parameter");
    });
  }
  return plan;
}

/// Stores the errors and factors that must outlive the plan. Those of a step that has not ended are
/// none: m has the gradients, and q is not summed.
void PowerSgdState::Impl::keep(Plan& plan, std::size_t index, KeptArrays& of_errors,
                               KeptArrays& of_factors) const {
  if (!plan.is_whole) return;
  if (options.error_feedback) {
    for (const Segment& s : plan.compressed)
      put(of_errors, s.id, plan, part(plan.m, s.at, s.count));
    const auto used = end_of(plan.compressed);
    if (const auto rest = plan.m.shape().numel() - used; rest != 0)
      put(of_errors, filling | index, plan, part(plan.m, used, rest));
  }
  if (options.warm_start)
    for (const Matrix& matrix : plan.matrices)
      put(of_factors, matrix.id, plan, part(plan.q.array, matrix.q, matrix.columns * matrix.rank));
}

Plan& PowerSgdState::Impl::plan_of(const Bucket& bucket) {
  const auto index = static_cast<std::size_t>(bucket.index());
  if (index >= plans.size() || plans[index]->generation != bucket.generation() ||
      !same_slices(plans[index]->slices, bucket.slices())) {
    // The buckets were rebuilt, or are those of another group. This bucket and the later ones were
    // not yet reduced in this step.
    for (std::size_t i = index; i < plans.size(); ++i) keep(*plans[i], i, errors, factors);
    plans.resize(std::min(index, plans.size()));
    if (plans.size() != index)
      failf(Errc::invalid_argument,
            "{} got bucket {} before bucket {}; buckets must come in the order of their index",
            name_of(form), index, plans.size());
    plans.push_back(make_plan(bucket));
  }
  return *plans[index];
}

Work PowerSgdState::Impl::run(Form wanted, Bucket& bucket) {
  check_computable(bucket, name_of(wanted));
  if (form != Form::none && form != wanted)
    failf(Errc::invalid_argument, "{} got the state of {}; give each hook a state of its own",
          name_of(wanted), name_of(form));
  form = wanted;
  const auto now = step;
  if (bucket.is_last()) ++step;
  if (now < options.start_step) return all_reduce_hook(bucket);
  Plan& plan = plan_of(bucket);
  if (plan.matrices.empty()) return all_reduce_hook(bucket);
  if (const Stream stream = bucket.call().stream;
      plan.device != nullptr && !(plan.stream == stream)) {
    // Waits until the arrays are no longer used on the stream of the last step.
    on_host(plan, part(plan.q.array, 0, 1), false, [](const TensorView&) { return true; });
    plan.stream = stream;
  }

  plan.is_whole = false;
  compress(plan, bucket, now);
  ProcessGroup& group = bucket.group();
  if (plan.device != nullptr) {  // Everything in the order of one stream.
    std::array<Work, 2> sums;
    sums[0] = group.all_reduce_async(plan.sent.message(), plan.sent.op(), bucket.call());
    sums[0].block_stream(plan.stream);
    project(plan);
    sums[1] = group.all_reduce_async(plan.q.message(), plan.q.op(), bucket.call());
    sums[1].block_stream(plan.stream);
    decompress(plan, bucket);
    plan.is_whole = true;
    return Work::all(sums);
  }
  // All ranks issue both calls here in the same order. project() runs between the two.
  std::array<Work, 2> sums;
  sums[0] =
      group.all_reduce_async(plan.sent.message(), plan.sent.op(), bucket.call()).then([&plan] {
        project(plan);
      });
  sums[1] = group.all_reduce_async(plan.q.message(), plan.q.op(), bucket.call());
  return Work::all(sums).then([&plan, &bucket] {
    decompress(plan, bucket);
    plan.is_whole = true;
  });
}

}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

PowerSgdState::PowerSgdState(PowerSgdOptions options) : impl_(std::make_unique<Impl>()) {
  const auto refuse = [](std::string_view option, auto value, std::string_view bound) {
    failf(Errc::invalid_argument, "{} of PowerSGD is {}; it must be {}", option, value, bound);
  };
  if (options.rank < 1) refuse("rank", options.rank, "1 or more");
  if (options.start_step < 0) refuse("start_step", options.start_step, "0 or more");
  if (!(options.min_compression_rate > 0))
    refuse("min_compression_rate", options.min_compression_rate, "above 0");
  if (!(options.orthogonalization_epsilon >= 0))
    refuse("orthogonalization_epsilon", options.orthogonalization_epsilon, "0 or more");
  impl_->options = std::move(options);
}

PowerSgdState::~PowerSgdState() = default;

const PowerSgdOptions& PowerSgdState::options() const noexcept {
  return impl_->options;
}

std::int64_t PowerSgdState::step() const noexcept {
  return impl_->step;
}

double PowerSgdState::compression_rate() const noexcept {
  std::int64_t before = 0;
  std::int64_t after = 0;
  for (const auto& plan : impl_->plans) {
    for (const Slice& slice : plan->slices) before += slice.shape.numel();
    after += plan->sent_numel + plan->q.array.shape().numel();
  }
  return after == 0 ? 1 : static_cast<double>(before) / static_cast<double>(after);
}

std::string PowerSgdState::save() const {
  const auto& o = impl_->options;
  KeptArrays errors = impl_->errors;
  KeptArrays factors = impl_->factors;
  for (std::size_t i = 0; i < impl_->plans.size(); ++i)
    impl_->keep(*impl_->plans[i], i, errors, factors);
  internal::Writer out;
  out.i32(o.rank).u8(o.error_feedback ? 1 : 0).u8(o.warm_start ? 1 : 0);
  out.f64(o.min_compression_rate).u8(static_cast<std::uint8_t>(impl_->form)).i64(impl_->step);
  errors.write(out);
  factors.write(out);
  return internal::seal(power_sgd_magic, out);
}

void PowerSgdState::load(std::string_view state) {
  auto in = internal::unseal(power_sgd_magic, power_sgd_text, state).content;
  const auto& o = impl_->options;
  const auto compare = [](std::string_view option, auto saved, auto mine) {
    if (saved != mine)
      failf(Errc::invalid_argument,
            "{} is {} in the saved state of PowerSGD and {} in this one; they must be equal",
            option, saved, mine);
  };
  compare("rank", in.i32(), o.rank);
  compare("error_feedback", in.u8() != 0, o.error_feedback);
  compare("warm_start", in.u8() != 0, o.warm_start);
  compare("min_compression_rate", in.f64(), o.min_compression_rate);
  const auto form = static_cast<Form>(in.u8());
  const auto step = in.i64();
  auto errors = KeptArrays::read(in);
  auto factors = KeptArrays::read(in);
  in.end();
  if (form > Form::batched || step < 0)
    failf(Errc::invalid_argument, "the {} is damaged ({} bytes)", power_sgd_text, state.size());
  impl_->form = form;
  impl_->step = step;
  impl_->errors = std::move(errors);
  impl_->factors = std::move(factors);
  impl_->plans.clear();
}

void PowerSgdState::set_group(ProcessGroup& group) try {
  const CallOptions call{.name = "PowerSGD"};
  const auto& o = impl_->options;
  const auto mine = fmt::format(
      "rank {}, start_step {}, min_compression_rate {}, error_feedback {}, warm_start {}, "
      "orthogonalization_epsilon {} and seed {}",
      o.rank, o.start_step, o.min_compression_rate, o.error_feedback, o.warm_start,
      o.orthogonalization_epsilon, o.seed);
  const auto all = all_gather_bytes(group, mine, call);
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      failf(Errc::mismatch,
            "PowerSgdState::set_group: rank 0 has {}; rank {} has {}; they must be equal", all[0],
            r, all[r]);
  KeptArrays errors = impl_->errors;
  KeptArrays factors = impl_->factors;
  for (std::size_t i = 0; i < impl_->plans.size(); ++i) {
    Plan& plan = *impl_->plans[i];
    // No host has seen whether the last step of a device has ended.
    if (plan.device == nullptr) impl_->keep(plan, i, errors, factors);
  }
  internal::Writer out;
  out.u8(static_cast<std::uint8_t>(impl_->form)).i64(impl_->step);
  factors.write(out);
  std::string of_first(out.view());
  broadcast_bytes(group, of_first, 0, call);
  internal::Reader in(of_first, Errc::backend, "the state of rank 0");
  const auto form = static_cast<Form>(in.u8());
  const auto step = in.i64();
  factors = KeptArrays::read(in);
  in.end();
  impl_->form = form;
  impl_->step = step;
  impl_->errors = std::move(errors);
  impl_->factors = std::move(factors);
  impl_->plans.clear();
} catch (...) {
  internal::end_calls(group);
}

Work power_sgd_hook(PowerSgdState& state, Bucket& bucket) {
  return state.impl_->run(Form::per_tensor, bucket);
}

Work batched_power_sgd_hook(PowerSgdState& state, Bucket& bucket) {
  return state.impl_->run(Form::batched, bucket);
}

CommHook power_sgd_hook(std::shared_ptr<PowerSgdState> state) {
  if (state == nullptr)
    failf(Errc::invalid_argument, "the state of power_sgd_hook is null; pass a PowerSgdState");
  return [state = std::move(state)](Bucket& bucket) { return power_sgd_hook(*state, bucket); };
}

CommHook batched_power_sgd_hook(std::shared_ptr<PowerSgdState> state) {
  if (state == nullptr)
    failf(Errc::invalid_argument,
          "the state of batched_power_sgd_hook is null; pass a PowerSgdState");
  return
      [state = std::move(state)](Bucket& bucket) { return batched_power_sgd_hook(*state, bucket); };
}

}  // namespace ddp
}  // namespace tutti
