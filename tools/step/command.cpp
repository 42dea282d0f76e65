#include "step/command.hpp"

#include <limits>
#include <string_view>

#include "bench/sizes.hpp"
#include "common/duration.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

DType parse_float(std::string_view text) {
  constexpr Names<4> names{"f16", "bf16", "f32", "f64"};
  parse_choice("--dtype", text, names);
  return *parse_dtype(text);
}

}  // namespace

OptionList StepCommand::options() {
  OptionList list;
  launch_texts_.add_to(list);
  const OptionList own{
      {"-m,--model", &model_, "resnet50 or uniform:NxSIZE (resnet50)", "NAME", "Work"},
      {"-d,--dtype", &dtype_, "of the gradients: f16, bf16, f32 or f64 (f32)", "TYPE", "Work"},
      {"--bucket", &buckets_, "sizes of a bucket, a row each (1M,5M,25M)", "SPEC", "Work"},
      {"--hook", &hook_, "all_reduce, fp16, bf16 or noop (all_reduce)", "NAME", "Work"},
      {"--as-view", &as_view_, "gradients live in the buckets", "", "Work"},
      {"--compute", &compute_, "of a step, on the processor; 0s: none (100ms)", "TIME", "Work"},
      {"--calls", &calls_, "also time an all_reduce of each gradient", "", "Work"},

      {"--rounds", &rounds_, "auto: at least 5 and --min-time", "N", "Timing"},
      {"--warmup", &warmup_, "rounds before each row (2)", "N", "Timing"},
      {"--min-time", &min_time_, "measure each row at least so long (1s)", "TIME", "Timing"},

      {"--check", &check_, "first, all or none of the steps (first)", "WHICH", "Check"},
      {"--seed", &seed_, "of the gradients (0)", "S", "Check"}};
  list.insert(list.end(), own.begin(), own.end());
  output_texts_.add_to(list);
  return list;
}

StepOptions StepCommand::parse(const std::vector<std::string>& argv) const {
  StepOptions options;
  launch_texts_.parse(options);
  output_texts_.parse(options, argv);
  options.dtype = parse_float(dtype_);
  options.model = parse_model(model_, options.dtype);
  for (const Size& size : parse_sizes(buckets_))
    options.bucket_bytes.push_back(bytes_of(size, options.dtype));
  options.hook = parse_choice<StepHook>("--hook", hook_);
  options.as_view = as_view_;
  options.compute = parse_duration("--compute", compute_);
  options.calls = calls_;
  options.rounds = parse_count("--rounds", rounds_, 1);
  options.warmup = parse_integer("--warmup", warmup_, 0, 1'000'000);
  options.min_time = parse_duration("--min-time", min_time_);
  options.check = parse_choice<Check>("--check", check_);
  options.seed = static_cast<std::uint64_t>(
      parse_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max()));
  return options;
}

}  // namespace tutti::tool
