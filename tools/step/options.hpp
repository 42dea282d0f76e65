#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/dtype.hpp>

#include "bench/measure.hpp"
#include "common/names.hpp"
#include "report/output.hpp"
#include "run/source.hpp"
#include "step/models.hpp"

namespace tutti::tool {

/// The hooks whose results are known exactly, so that they can be checked.
enum class StepHook : std::uint8_t { all_reduce, fp16, bf16, noop };
template <>
inline constexpr Names<4> names_of<StepHook>{"all_reduce", "fp16", "bf16", "noop"};

struct StepOptions : RunOptions, OutputOptions {
  Model model{"resnet50", {}};
  DType dtype = DType::f32;           ///< f16, bf16, f32 or f64.
  std::string buckets = "1M,5M,25M";  ///< As given, for bucket_bytes.
  std::vector<std::int64_t> bucket_bytes{};
  StepHook hook = StepHook::all_reduce;
  bool as_view = false;  ///< Gradients live in the buckets.
  /// Of a step; 0: communication only.
  std::chrono::nanoseconds compute = std::chrono::milliseconds(100);
  bool calls = false;                    ///< Measure an all_reduce of each gradient.
  std::optional<std::int64_t> rounds{};  ///< Empty: at least 5 and min_time.
  std::int64_t warmup = 2;               ///< Rounds that are not counted.
  std::chrono::nanoseconds min_time = std::chrono::seconds(1);
  Check check = Check::first;
  std::uint64_t seed = 0;
  /// Time for which rank 0 waits for the other ranks' outcomes after its own run has failed.
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
};

}  // namespace tutti::tool
