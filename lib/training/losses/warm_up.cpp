#include <tutti/losses/warm_up.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/over_ranks.hpp"
#include "losses/staged.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/saved_state.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;

void check_not_negative(std::string_view what, std::int64_t value) {
  if (value < 0)
    failf(Errc::invalid_argument, "warm_up: {} is {}; it must be 0 or more", what, value);
}

void check(const WarmUpOptions& o) {
  if (o.warmup_steps && o.warmup_epochs != 0)
    failf(Errc::invalid_argument,
          "warm_up: warmup_epochs is {} and warmup_steps {}; set only one of them", o.warmup_epochs,
          *o.warmup_steps);
  if (o.blend_steps && o.blend_epochs != 0)
    failf(Errc::invalid_argument,
          "warm_up: blend_epochs is {} and blend_steps {}; set only one of them", o.blend_epochs,
          *o.blend_steps);
  if (o.blend_steps && !o.warmup_steps)
    failf(Errc::invalid_argument,
          "warm_up: blend_steps is {}, but warmup_steps is not set; set it, or use blend_epochs "
          "instead",
          *o.blend_steps);
  if (o.warmup_steps && o.blend_epochs != 0)
    failf(Errc::invalid_argument,
          "warm_up: warmup_steps is {} and blend_epochs is {}; with warmup_steps, set blend_steps "
          "instead",
          *o.warmup_steps, o.blend_epochs);
  check_not_negative("warmup_epochs", o.warmup_epochs);
  check_not_negative("warmup_steps", o.warmup_steps.value_or(0));
  check_not_negative("blend_epochs", o.blend_epochs);
  check_not_negative("blend_steps", o.blend_steps.value_or(0));
  if (!(o.final_main_weight > 0 && o.final_main_weight <= 1))
    failf(Errc::invalid_argument, "warm_up: final_main_weight is {}; it must be above 0, at most 1",
          o.final_main_weight);
  for (const auto& [what, value] :
       {std::pair{"temp_start", o.temp_start}, {"temp_end", o.temp_end}})
    if (!(value > 0) || !std::isfinite(value))
      failf(Errc::invalid_argument, "warm_up: {} is {}; it must be above 0", what, value);
  if (o.temp_decay_steps <= 0)
    failf(Errc::invalid_argument, "warm_up: temp_decay_steps is {}; it must be above 0",
          o.temp_decay_steps);
}

/// Checks the gradient of `warm_up_`, a function of the user.
void check_gradient(const Tensor& grad, const ConstTensorView& logits) {
  if (grad.dtype() != logits.dtype || !(grad.shape() == logits.shape) ||
      grad.device().type != DeviceType::cpu)
    failf(Errc::invalid_argument,
          "warm_up: the gradient of the first loss is {} {} on {}; as for the logits, it must be "
          "{} {} on cpu",
          name_of(grad.dtype()), to_string(grad.shape()), to_string(grad.device()),
          name_of(logits.dtype), to_string(logits.shape));
}

/// to = weight * to + (1 - weight) * other. Both have the same shape and dtype.
void mix(Tensor& to, double weight, const Tensor& other) {
  internal::losses::with_type(to.dtype(), [&]<typename T>(T) {
    using internal::losses::to_double;
    auto* out = static_cast<T*>(to.data());
    const auto* in = static_cast<const T*>(other.data());
    for (std::int64_t i = 0; i < to.shape().numel(); ++i)
      out[i] = internal::losses::from_double<T>(weight * to_double(out[i]) +
                                                (1 - weight) * to_double(in[i]));
  });
}

/// Collective. Throws on every rank unless `position`, the place in the schedule, is equal on all
/// ranks and `check` passes on all.
void agree(ProcessGroup* group, const std::string& position, const CallOptions& options,
           const std::function<void()>& check = {}) {
  const auto checked = [&](std::span<double>) {
    if (check) check();
  };
  (void)internal::losses::sums_over_ranks(group, "warm_up", position, 0, checked, options);
}

constexpr std::string_view magic = "TUTTUW02";

}  // namespace

WarmUp::WarmUp(Loss warm_up, std::unique_ptr<RankingLoss> main, const Options& options)
    : warm_up_(std::move(warm_up)), main_(std::move(main)), options_(options) {
  check(options_);
  if (!warm_up_ || main_ == nullptr)
    failf(Errc::invalid_argument, "warm_up: the {} loss is null", warm_up_ ? "main" : "first");
  if (!options_.logger) options_.logger = default_logger();
  if (in_warm_up()) return;
  schedule_.to_main = Switch::done;
  main_->set_temperature(options_.temp_start);
}

std::int64_t WarmUp::past_warm_up() const noexcept {
  return counts_steps() ? schedule_.step - *options_.warmup_steps
                        : schedule_.epoch - options_.warmup_epochs;
}

std::int64_t WarmUp::blend_length() const noexcept {
  return counts_steps() ? options_.blend_steps.value_or(0) : options_.blend_epochs;
}

bool WarmUp::in_warm_up() const noexcept {
  return past_warm_up() < 0;
}

bool WarmUp::in_blend() const noexcept {
  return !in_warm_up() && past_warm_up() < blend_length();
}

double WarmUp::main_weight() const noexcept {
  if (in_warm_up()) return 0;
  if (!in_blend()) return options_.final_main_weight;
  return (static_cast<double>(past_warm_up()) + 1) / (static_cast<double>(blend_length()) + 1) *
         options_.final_main_weight;
}

void WarmUp::start_epoch(std::int64_t epoch) {
  check_not_negative("the epoch", epoch);
  schedule_.epoch = epoch;
  if (in_warm_up()) return;
  if (!counts_steps() && schedule_.to_main == Switch::not_yet)
    schedule_.to_main = Switch::at_next_step;
  if (options_.reset_queue_each_epoch) main_->reset_queue();
}

void WarmUp::start_step(std::int64_t step) {
  check_not_negative("the step", step);
  schedule_.stepped = true;
  schedule_.step = step;
  if (in_warm_up()) return;
  if (counts_steps() && schedule_.to_main == Switch::not_yet)
    schedule_.to_main = Switch::at_next_step;
  const auto& o = options_;
  if (schedule_.to_main == Switch::at_next_step) {
    schedule_.to_main = Switch::done;
    schedule_.switch_step = step;
    main_->set_temperature(o.temp_start);
    main_->reset_queue();
  } else if (schedule_.to_main == Switch::done) {
    const double part = std::clamp(
        static_cast<double>(step - schedule_.switch_step) / static_cast<double>(o.temp_decay_steps),
        0.0, 1.0);
    main_->set_temperature(o.temp_start * std::exp(part * std::log(o.temp_end / o.temp_start)));
  }
}

WarmUp::WarmUp(const CrossEntropy& warm_up, std::unique_ptr<RankingLoss> main,
               const Options& options)
    : WarmUp(
          [warm_up](ProcessGroup* group, const Batch& batch, const CallOptions& options) {
            return group == nullptr ? warm_up(batch) : warm_up(*group, batch, options);
          },
          std::move(main), options) {}

/// Copies device arrays to the host once, for both losses.
LossResult WarmUp::compute(ProcessGroup* group, const Batch& batch,
                           const CallOptions& options) try {
  internal::losses::Staged staged(group, options);
  auto here = batch;
  if (!main_->gathers()) group = nullptr;  // The first loss then sees only this rank's rows too.
  // This rank then calls no loss. Its peers get the error in the first exchange of the loss that
  // they call.
  if (const auto why = internal::refusal_of([&] { here = staged.on_host(batch); }))
    agree(group, {}, options, [&] { throw Error(*why); });
  auto result = mixed(group, here, options);
  const auto device = batch.logits.device;
  if (device.type == DeviceType::cpu || result.grad.device() == device) return result;
  check_gradient(result.grad, here.logits);
  result.grad = staged.gradient([&](void* to) {
    if (result.grad.bytes() != 0) std::memcpy(to, result.grad.data(), result.grad.bytes());
  });
  return result;
} catch (...) {
  internal::end_calls(group);
}

LossResult WarmUp::main_loss(ProcessGroup* group, const Batch& batch, const CallOptions& options) {
  return group == nullptr ? (*main_)(batch) : (*main_)(*group, batch, options);
}

LossResult WarmUp::mixed(ProcessGroup* group, const Batch& batch, const CallOptions& options) {
  const double weight = main_weight();
  if (!schedule_.stepped && (counts_steps() || !in_warm_up()) && !std::exchange(warned_, true))
    options_.logger(
        LogLevel::warning,
        fmt::format("warm_up: start_step() was never called, so {}; call it in every step, also "
                    "where phases are counted in epochs",
                    in_warm_up() ? std::string("the warm-up does not end")
                                 : fmt::format("the temperature stays {}", temperature())));
  if (in_warm_up()) return warm_up_(group, batch, options);
  if (weight >= 1) return main_loss(group, batch, options);
  // Compares the weights, because two losses run in this phase. In a phase with one loss, its own
  // exchange detects ranks that run the other loss.
  agree(group, fmt::format("main weight {}", weight), options);
  const LossResult first = warm_up_(group, batch, options);
  agree(group, "the first loss's gradient", options,
        [&] { check_gradient(first.grad, batch.logits); });
  LossResult result = main_loss(group, batch, options);
  result.loss = weight * result.loss + (1 - weight) * first.loss;
  mix(result.grad, weight, first.grad);
  return result;
}

std::string WarmUp::save(ProcessGroup& group, const CallOptions& options) const {
  return save_over(&group, options);
}

std::string WarmUp::save() const {
  return save_over(nullptr, {});
}

namespace {

template <typename Schedule>
void write_schedule(internal::Writer& out, const Schedule& schedule) {
  out.i64(schedule.epoch).i64(schedule.step).u8(static_cast<std::uint8_t>(schedule.to_main));
  out.i64(schedule.switch_step).u8(schedule.stepped ? 1 : 0);
}

template <typename Schedule>
Schedule read_schedule(internal::Reader& in) {
  Schedule schedule;
  schedule.epoch = in.i64();
  schedule.step = in.i64();
  schedule.to_main = static_cast<decltype(schedule.to_main)>(in.u8());
  schedule.switch_step = in.i64();
  schedule.stepped = in.u8() != 0;
  return schedule;
}

}  // namespace

std::string WarmUp::save_over(ProcessGroup* group, const CallOptions& options) const {
  const auto& now = schedule_;
  agree(group,
        fmt::format("epoch {}, step {}, switch {} at step {}", now.epoch, now.step,
                    static_cast<int>(now.to_main), now.switch_step),
        options);
  internal::Writer out;
  out.u8(counts_steps() ? 1 : 0);
  write_schedule(out, now);
  out.raw(group == nullptr ? main_->save() : main_->save(*group, options));
  return internal::seal(magic, out);
}

void WarmUp::set_group(ProcessGroup& group, const CallOptions& options) {
  internal::Writer out;
  write_schedule(out, schedule_);
  std::string of_first(out.view());
  broadcast_bytes(group, of_first, 0, options);
  main_->set_group(group, options);
  internal::Reader in(of_first, Errc::backend, "the schedule of rank 0");
  schedule_ = read_schedule<Schedule>(in);
}

void WarmUp::load(ProcessGroup& group, std::string_view state) {
  load_over(&group, state);
}

void WarmUp::load(std::string_view state) {
  load_over(nullptr, state);
}

void WarmUp::load_over(ProcessGroup* group, std::string_view state) {
  auto in = internal::unseal(magic, "saved state of warm_up", state).content;
  const bool saved_steps = in.u8() != 0;
  const auto saved = read_schedule<Schedule>(in);
  if (saved.epoch < 0 || saved.step < 0 || saved.to_main > Switch::done || saved.switch_step < 0)
    failf(Errc::invalid_argument, "the saved state of warm_up is damaged ({} bytes)", state.size());
  const auto unit = [](bool steps) { return steps ? "steps" : "epochs"; };
  if (counts_steps() != saved_steps)
    failf(Errc::invalid_argument,
          "warm_up: the saved schedule counts {}, this one counts {}; both must count the same",
          unit(saved_steps), unit(counts_steps()));
  const auto of_main = state.substr(state.size() - in.left());
  group == nullptr ? main_->load(of_main) : main_->load(*group, of_main);
  schedule_ = saved;
}

}  // namespace losses
}  // namespace tutti
