#include "step/step.hpp"

#include <limits>
#include <string_view>

#include "bench/sizes.hpp"
#include "common/text.hpp"

namespace tutti::tool {
OptionList step_options(StepOptions& to) {
  const auto dtype = [&to](std::string_view option, const std::string& text) {
    constexpr Names<4> names{"f16", "bf16", "f32", "f64"};
    parse_choice(option, text, names);
    to.dtype = *parse_dtype(text);
  };
  OptionList list;
  add_launch_options(list, to);
  const OptionList own{
      {"-m,--model", &to.model.name, "resnet50 or uniform:NxSIZE (resnet50)", "NAME", "Work"},
      {"-d,--dtype", dtype, "of the gradients: f16, bf16, f32 or f64 (f32)", "TYPE", "Work"},
      {"--bucket", &to.buckets, "sizes of a bucket, a row each (1M,5M,25M)", "SPEC", "Work"},
      {"--hook", to_choice(to.hook), "all_reduce, fp16, bf16 or noop (all_reduce)", "NAME", "Work"},
      {"--as-view", &to.as_view, "gradients live in the buckets", "", "Work"},
      {"--compute", to_duration(to.compute), "of a step, on the processor; 0s: none (100ms)",
       "TIME", "Work"},
      {"--calls", &to.calls, "also time an all_reduce of each gradient", "", "Work"},

      {"--rounds", to_count(to.rounds, 1), "auto: at least 5 and --min-time", "N", "Timing"},
      {"--warmup", to_integer(to.warmup, 0, 1'000'000), "rounds before each row (2)", "N",
       "Timing"},
      {"--min-time", to_duration(to.min_time), "measure each row at least so long (1s)", "TIME",
       "Timing"},

      {"--check", to_choice(to.check), "first, all or none of the steps (first)", "WHICH", "Check"},
      {"--seed", to_integer(to.seed, 0, std::numeric_limits<std::int64_t>::max()),
       "of the gradients (0)", "S", "Check"}};
  list.insert(list.end(), own.begin(), own.end());
  add_output_options(list, to);
  return list;
}

void check_step(StepOptions& options) {
  check_launch(options);
  for (const std::string& file : options.files) (void)format_of(file);
  options.model = parse_model(options.model.name, options.dtype);
  for (const Size& size : parse_sizes(options.buckets))
    options.bucket_bytes.push_back(bytes_of(size, options.dtype));
}

}  // namespace tutti::tool
