#include "step/measure.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>

#include "bench/own_calls.hpp"
#include "bench/pattern.hpp"
#include "bench/staging.hpp"
#include "common/duration.hpp"
#include "common/message.hpp"

namespace tutti::tool {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t fewest_rounds = 5;
constexpr std::int64_t most_timed_rounds = 1000;

/// The measurements of a round, in this order.
enum Part : std::size_t { communication, compute, overlap, no_overlap, calls, part_count };

/// One rank's results of a row.
struct StepResult {
  std::array<std::vector<double>, part_count> us{};  // By round.
  double cpu = 0;
  std::int64_t wrong = 0;
  std::optional<FirstWrong> first{};
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepResult, us, cpu, wrong, first)

std::optional<DType> wire_dtype(StepHook hook) {
  if (hook == StepHook::fp16) return DType::f16;
  if (hook == StepHook::bf16) return DType::bf16;
  return std::nullopt;
}

ddp::CommHook make_hook(StepHook hook) {
  switch (hook) {
    case StepHook::fp16:
      return ddp::fp16_compress_hook();
    case StepHook::bf16:
      return ddp::bf16_compress_hook();
    case StepHook::noop:
      return ddp::noop_hook;
    case StepHook::all_reduce:
      break;
  }
  return {};  // The reducer reduces without a hook.
}

std::vector<ddp::Parameter> parameters_of(const StepOptions& options, Device device) {
  std::vector<ddp::Parameter> parameters;
  for (const Model::Parameter& parameter : options.model.parameters)
    parameters.push_back({parameter.name, {nullptr, options.dtype, parameter.shape, device}});
  return parameters;
}

ddp::ReducerOptions reducer_options(const StepOptions& options, std::int64_t bucket_bytes) {
  ddp::ReducerOptions reducer;
  reducer.first_bucket_cap = std::min(reducer.first_bucket_cap, bucket_bytes);
  reducer.bucket_cap = bucket_bytes;
  reducer.gradient_as_bucket_view = options.as_view;
  return reducer;
}

/// The steps of one row on one rank.
class Steps {
 public:
  Steps(ProcessGroup& group, const StepOptions& options, std::int64_t bucket_bytes,
        ComputeLoop& compute, Tensor& gradients)
      : group_(group),
        options_(options),
        compute_(compute),
        memory_(gradients),
        pattern_(options.dtype, ReduceOp::Kind::sum, group_.size(), options.seed,
                 wire_dtype(options.hook)),
        reducer_(group_, parameters_of(options, group_.memory().device()),
                 reducer_options(options, bucket_bytes)) {
    reducer_.set_hook(make_hook(options.hook));
    const std::int64_t all = options.model.elements();
    const auto up_to = [&](std::int64_t elements) {  // Rounds, without an overflow.
      return std::llround(static_cast<double>(compute.rounds()) * static_cast<double>(elements) /
                          static_cast<double>(all));
    };
    for (const Model::Parameter& parameter : options.model.parameters) {
      const std::int64_t end = first_ + parameter.shape.numel();
      rounds_.push_back(up_to(end) - up_to(first_));
      firsts_.push_back(std::exchange(first_, end));
    }
    patience_ = Deadline::saturate(
        std::chrono::duration<double, std::nano>(options.timeout) +
        std::chrono::duration<double, std::nano>(100.0 * static_cast<double>(all) * group_.size()) +
        2 * std::chrono::duration<double, std::nano>(options.compute));
  }

  /// Makes steps and, if chosen, the calls on data whose results are known, and counts the wrong
  /// elements. Two steps, because the first one of a reducer rebuilds its buckets.
  void check() {
    for (const Part part : {communication, communication, calls})
      if (is_chosen(part)) run(part, true);
  }
  /// The same two steps without a check.
  void begin() {
    for (int i = 0; i < 2; ++i) run(communication, false);
  }

  bool is_chosen(Part part) const {
    if (part == calls) return options_.calls;
    return part == communication || compute_.rounds() > 0;
  }

  /// Makes every chosen measurement once, and returns their time together. `counted`: keeps the
  /// times for the result.
  std::chrono::nanoseconds round(bool counted) {
    std::chrono::nanoseconds all{};
    for (const Part part : {communication, compute, overlap, no_overlap, calls}) {
      if (!is_chosen(part)) continue;
      const std::chrono::nanoseconds time = run(part, options_.check == Check::all);
      all += time;
      if (!counted) continue;
      result_.us[part].push_back(1e-3 * static_cast<double>(time.count()));
      if (part != communication) continue;
      communication_time_ += time;
      communication_cpu_ += cpu_;
    }
    return all;
  }

  /// @param ranks_here  the ranks of this process, which share its processor time.
  StepResult result(int ranks_here) {
    if (communication_time_.count() > 0)
      result_.cpu = static_cast<double>(communication_cpu_) / CLOCKS_PER_SEC /
                    seconds(communication_time_) / ranks_here;
    return result_;
  }
  const ddp::GradientReducer& reducer() const noexcept { return reducer_; }

 private:
  /// Makes one measurement when all ranks are ready for it, and returns its time. `checked`: on
  /// data whose results are known, which is not timed.
  std::chrono::nanoseconds run(Part part, bool checked) {
    const bool reduces = part != compute;
    // The first step of a reducer may have moved the gradients.
    views_.clear();
    for (std::size_t id = 0; id < rounds_.size(); ++id) views_.push_back(gradient(id));
    // A sum of integers is exact. Otherwise a mean, as usual, which leaves equal gradients as they
    // are, so that the values stay finite over any number of steps.
    reducer_.set_divisor(checked ? 1 : 0);
    if (checked && reduces) fill();
    meet();
    const std::clock_t cpu_before = std::clock();  // Of all threads.
    const auto start = Clock::now();
    make(part, checked ? ReduceOp::sum : ReduceOp::avg);
    const auto time = Clock::now() - start;
    cpu_ = std::clock() - cpu_before;
    if (checked && reduces) inspect(part);
    return time;
  }

  /// A barrier whose timeout allows other ranks to fill or check for longer than this one.
  void meet() { group_.barrier({.deadline = Deadline::after(patience_)}); }

  void make(Part part, ReduceOp op) {
    if (part == no_overlap)
      for (std::size_t id = rounds_.size(); id-- > 0;) compute_.run(rounds_[id]);
    for (std::size_t id = rounds_.size(); id-- > 0;) {  // Backward ends with the first parameter.
      if (part == compute || part == overlap) compute_.run(rounds_[id]);
      if (part == calls) group_.all_reduce(views_[id], op);
      if (part != compute && part != calls) reducer_.mark_ready(id, views_[id]);
    }
    if (part != compute && part != calls) reducer_.finish();
    if (part != compute && !on_host(group_.memory()))
      wait_for_default_stream(group_.memory(), views_.front().data);
  }

  TensorView gradient(std::size_t id) {
    if (memory_.data() == nullptr) return reducer_.gradient(id);
    auto* const data = static_cast<std::byte*>(memory_.data()) +
                       static_cast<std::size_t>(firsts_[id]) * size_of(options_.dtype);
    return {data, options_.dtype, options_.model.parameters[id].shape, memory_.device()};
  }

  std::int64_t elements(std::size_t bytes) const noexcept {
    return static_cast<std::int64_t>(bytes / size_of(options_.dtype));
  }

  void fill() {
    for (std::size_t id = 0; id < views_.size(); ++id)
      write(group_.memory(), views_[id].data, views_[id].bytes(),
            [&](std::byte* piece, std::size_t at, std::size_t bytes) {
              pattern_.fill(piece, elements(bytes), group_.rank(), firsts_[id] + elements(at));
            });
  }

  void inspect(Part part) {
    const int rank = group_.rank();
    const bool own = options_.hook == StepHook::noop && part != calls;
    for (std::size_t id = 0; id < views_.size(); ++id)
      read(group_.memory(), views_[id].data, views_[id].bytes(),
           [&](const std::byte* piece, std::size_t at, std::size_t bytes) {
             const Pattern::Source source{own ? rank : 0, own ? rank + 1 : group_.size(),
                                          firsts_[id] + elements(at)};
             const Mismatches found = pattern_.check(piece, elements(bytes), source);
             if (found.first && result_.wrong == 0)
               result_.first = {rank, options_.model.parameters[id].name,
                                found.first->index + elements(at), found.first->expected,
                                found.first->got};
             result_.wrong += found.count;
           });
  }

  ProcessGroup& group_;
  const StepOptions& options_;
  ComputeLoop& compute_;
  Tensor& memory_;
  Pattern pattern_;
  std::int64_t first_ = 0;
  std::vector<std::int64_t> firsts_{};  // By parameter: the first element in the model.
  std::vector<std::int64_t> rounds_{};  // By parameter: rounds of the compute loop.
  std::chrono::nanoseconds patience_{};
  std::vector<TensorView> views_{};
  StepResult result_{};
  std::clock_t cpu_ = 0;  // Of the last run().
  std::chrono::nanoseconds communication_time_{};
  std::clock_t communication_cpu_ = 0;
  ddp::GradientReducer reducer_;
};

/// The row of all ranks together.
StepRow make_row(const std::vector<StepResult>& ranks, const StepOptions& options,
                 std::span<const ddp::Bucket> buckets) {
  StepRow row;
  row.buckets = std::ssize(buckets);
  for (const ddp::Bucket& bucket : buckets)
    row.bytes += static_cast<std::int64_t>(bucket.buffer().bytes());
  row.last_bucket_bytes = static_cast<std::int64_t>(buckets.back().buffer().bytes());
  const auto slowest = [&](Part part) -> std::optional<Summary> {
    std::vector<double> us = ranks.front().us[part];
    if (us.empty()) return std::nullopt;
    for (const StepResult& rank : ranks)
      std::ranges::transform(us, rank.us[part], us.begin(),
                             [](double a, double b) { return std::max(a, b); });
    return summarize(us);
  };
  row.communication_us = slowest(communication).value();
  row.compute_us = slowest(compute);
  row.overlap_us = slowest(overlap);
  row.no_overlap_us = slowest(no_overlap);
  row.calls_us = slowest(calls);
  if (options.check != Check::none) row.wrong = 0;
  for (const StepResult& rank : ranks) {
    row.communication_cpu = std::max(row.communication_cpu, rank.cpu);
    if (options.check == Check::none) continue;
    if (!row.first_wrong) row.first_wrong = rank.first;
    *row.wrong += rank.wrong;
  }
  return row;
}

}  // namespace

StepBench::StepBench(Rank& rank, Control& control, const StepOptions& options, int ranks_here)
    : rank_(rank),
      control_(control),
      options_(options),
      ranks_here_(ranks_here),
      compute_(options.compute) {
  if (!options.as_view)
    gradients_ = Tensor(rank.group.memory(), Shape{options.model.elements()}, options.dtype);
}

StepRow StepBench::measure(std::int64_t bucket_bytes) {
  ProcessGroup& group = rank_.group;
  rank_.position = {"step " + options_.model.name, bucket_bytes, -1};
  Steps steps(group, options_, bucket_bytes, compute_, gradients_);
  const bool checked = options_.check != Check::none;
  if (checked)
    steps.check();
  else
    steps.begin();
  for (std::int64_t i = 0; i < options_.warmup; ++i) steps.round(false);
  std::chrono::nanoseconds spent{};
  for (std::int64_t i = 0;; ++i) {
    const bool goes_on =
        options_.rounds ? i < *options_.rounds
                        : i < fewest_rounds || (spent < options_.min_time && i < most_timed_rounds);
    if (agree(group, goes_on ? 1 : 0) == 0) break;
    rank_.position.iteration = i;
    spent += steps.round(true);
  }
  if (checked) steps.check();
  std::vector<StepResult> ranks;
  for (const std::string& text : control_.collect(to_message(steps.result(ranks_here_))))
    ranks.push_back(from_message<StepResult>(text));
  rank_.position = {};
  if (group.rank() != 0) return {};
  StepRow row = make_row(ranks, options_, steps.reducer().buckets());
  row.bucket_bytes = bucket_bytes;
  return row;
}

}  // namespace tutti::tool
