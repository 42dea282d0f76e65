#include "step/step.hpp"

#include <limits>
#include <string_view>

#include "bench/sizes.hpp"
#include "common/text.hpp"

namespace tutti::tool {
OptionList step_options(StepOptions& to) {
  static constexpr Names<4> dtypes{"f16", "bf16", "f32", "f64"};
  const auto dtype = [&to](std::string_view option, const std::string& text) {
    parse_choice(option, text, dtypes);
    to.dtype = *parse_dtype(text);
  };
  OptionList list;
  add_launch_options(list, to);
  const OptionList own{
      {"-m,--model", to_text(to.model.name, {"resnet50"}),
       "gradients: resnet50, or uniform:NxSIZE such as uniform:16x1M", "NAME", "Work"},
      {"-d,--dtype", Reader{dtype, {dtypes.begin(), dtypes.end()}, std::string(name_of(to.dtype))},
       "dtype of the gradients: f16, bf16, f32 or f64", "TYPE", "Work"},
      {"--bucket", &to.buckets, "sizes of a bucket, a row each; see tutti bench --help-sizes",
       "SPEC", "Work"},
      {"--hook", to_choice(to.hook), "communication hook: all_reduce, fp16, bf16 or noop", "NAME",
       "Work"},
      {"--as-view", &to.as_view, "gradients live in the buckets instead of being copied", "",
       "Work"},
      {"--compute", to_duration(to.compute),
       "processor time of the compute loop of a step; 0s: no loop", "TIME", "Work"},
      {"--calls", &to.calls, "also time one blocking all_reduce per gradient", "", "Work"},

      {"--rounds", to_count(to.rounds, 1),
       "rounds of each row; auto: at least 5 and --min-time, at most 1000", "N", "Timing"},
      {"--warmup", to_integer(to.warmup, 0, 1'000'000), "rounds before each row, not counted", "N",
       "Timing"},
      {"--min-time", to_duration(to.min_time), "least time per row", "TIME", "Timing"},

      {"--check", to_choice(to.check),
       "steps whose result is checked: all, none, or first, two before and two after each row",
       "WHICH", "Check"},
      {"--seed", to_integer(to.seed, 0, std::numeric_limits<std::int64_t>::max()),
       "seed of the gradients", "S", "Check"}};
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
