#include <tutti/ddp/local_sgd.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

#include <tutti/ddp/hooks.hpp>

#include "ddp/segments.hpp"
#include "group/call.hpp"
#include "values/fail.hpp"
#include "values/saved_state.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {
namespace {

using internal::failf;

constexpr std::string_view local_sgd_magic = "tuttiPL1";
constexpr std::string_view local_sgd_text = "saved state of post_local_sgd_hook";

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;  // Smaller arrays are averaged together.

/// Returns the reduction that computes `factor` times the mean over `ranks` ranks.
ReduceOp mean(DType dtype, int ranks, double factor) {
  // In types of 1 or 2 bytes the sum may overflow although the mean is finite, so each rank scales
  // before the sum.
  const bool small = is_float(dtype) && size_of(dtype) <= 2;
  return factor == 1 && !small ? ReduceOp::avg : ReduceOp::premul(factor / ranks);
}

void scale_on_host(Bucket& bucket, double factor) {
  check_computable(bucket, "post_local_sgd_hook without a sub-group and with a divisor of its own");
  const TensorView& buffer = bucket.buffer();
  with_compute_type(buffer.dtype, [&]<typename T>() {
    with_elements<T>(buffer, [&](auto* elements) {
      using E = std::remove_pointer_t<decltype(elements)>;
      for (std::int64_t i = 0; i < buffer.shape.numel(); ++i)
        elements[i] = static_cast<E>(static_cast<T>(elements[i]) * static_cast<T>(factor));
    });
  });
}

}  // namespace

PostLocalSgdState::PostLocalSgdState(std::int64_t start_step, ProcessGroup* sub_group)
    : start_step_(start_step) {
  if (sub_group != nullptr) sub_group_ = sub_group->share();
  if (start_step < 0)
    failf(Errc::invalid_argument, "start_step of post_local_sgd_hook is {}; it must be 0 or more",
          start_step);
}

std::string PostLocalSgdState::save() const try {
  internal::Writer out;
  out.i64(step_);
  return internal::seal(local_sgd_magic, out);
} catch (...) {
  internal::end_calls(nullptr);
}

void PostLocalSgdState::load(std::string_view state) try {
  auto in = internal::unseal(local_sgd_magic, local_sgd_text, state).content;
  const auto step = in.i64();
  in.end();
  if (step < 0)
    failf(Errc::invalid_argument, "the {} is damaged ({} bytes)", local_sgd_text, state.size());
  step_ = step;
} catch (...) {
  internal::end_calls(nullptr);
}

Work post_local_sgd_hook(PostLocalSgdState& state, Bucket& bucket) {
  const auto now = state.step_;
  if (bucket.is_last()) ++state.step_;
  if (now < state.start_step_) return all_reduce_hook(bucket);
  const TensorView& buffer = bucket.buffer();
  const double factor = bucket.group().size() / bucket.divisor();
  if (auto& group = state.sub_group_)
    return group->all_reduce_async(buffer, mean(buffer.dtype, group->size(), factor),
                                   bucket.call());
  if (factor != 1) scale_on_host(bucket, factor);
  return {};
}

CommHook post_local_sgd_hook(std::shared_ptr<PostLocalSgdState> state) {
  if (state == nullptr)
    failf(Errc::invalid_argument,
          "the state of post_local_sgd_hook is null; pass a PostLocalSgdState");
  return [state = std::move(state)](Bucket& bucket) { return post_local_sgd_hook(*state, bucket); };
}

PeriodicModelAverager::PeriodicModelAverager(ProcessGroup& group, std::int64_t period,
                                             std::int64_t warmup_steps) try
    : group_(group.share()), period_(period), warmup_steps_(warmup_steps) {
  if (period < 1)
    failf(Errc::invalid_argument, "period of PeriodicModelAverager is {}; it must be 1 or more",
          period);
  if (warmup_steps < 0)
    failf(Errc::invalid_argument,
          "warmup_steps of PeriodicModelAverager is {}; it must be 0 or more", warmup_steps);
} catch (...) {
  internal::end_calls(nullptr);
}

void PeriodicModelAverager::set_step(std::int64_t step) {
  if (step < 0)
    failf(Errc::invalid_argument, "step of PeriodicModelAverager is {}; it must be 0 or more",
          step);
  step_ = step;
}

bool PeriodicModelAverager::average(std::span<const TensorView> parameters,
                                    const CallOptions& options) try {
  for (const TensorView& p : parameters)
    if (!is_float(p.dtype) && !is_complex(p.dtype))
      failf(Errc::invalid_argument,
            "PeriodicModelAverager averages floats and complex numbers, and got an array of {}",
            name_of(p.dtype));
  const auto now = step_++;
  if (now < warmup_steps_ || (now - warmup_steps_) % period_ != 0) return false;

  Memory& memory = group_.memory();
  std::size_t first = 0;  // Index of the first parameter of the current run.
  std::size_t used = 0;   // Bytes of the run's small parameters.
  const auto for_each_small = [&](std::size_t end, auto&& f) {
    std::size_t at = 0;
    for (std::size_t i = first; i < end; ++i) {
      const std::size_t bytes = parameters[i].bytes();
      if (bytes == 0 || bytes >= chunk_bytes) continue;
      f(parameters[i].data, static_cast<std::byte*>(together_.data()) + at, bytes);
      at += bytes;
    }
  };
  const auto send = [&](std::size_t end) {
    if (used != 0) {
      const DType dtype = parameters[first].dtype;
      for_each_small(end, [&](void* from, std::byte* to, std::size_t bytes) {
        memory.copy(to, from, bytes, options.stream);
      });
      const TensorView data(together_.data(), dtype,
                            Shape::vector(static_cast<std::int64_t>(used / size_of(dtype))),
                            together_.device());
      group_.all_reduce(data, mean(dtype, group_.size(), 1), options);
      for_each_small(end, [&](void* to, std::byte* from, std::size_t bytes) {
        memory.copy(to, from, bytes, options.stream);
      });
    }
    first = end;
    used = 0;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& p = parameters[i];
    // All parameters of a run have the same dtype.
    if (p.dtype != parameters[first].dtype ||
        (p.bytes() < chunk_bytes && used + p.bytes() > chunk_bytes))
      send(i);
    if (p.bytes() >= chunk_bytes)
      group_.all_reduce(p, mean(p.dtype, group_.size(), 1), options);
    else
      used += p.bytes();
    if (used != 0 && together_.bytes() == 0)
      together_ = Tensor(memory, Shape::vector(chunk_bytes), DType::u8, options.stream);
  }
  send(parameters.size());
  return true;
} catch (...) {
  internal::end_calls(group_);
}

}  // namespace ddp
}  // namespace tutti
