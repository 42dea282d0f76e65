#include "ddp/descriptions.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::ddp {
namespace {

std::string describe(const char* what, std::size_t id, const Parameter& p) {
  return fmt::format("{} {} '{}' {} {}{}\n", what, id, p.name, tutti::name_of(p.value.dtype),
                     to_string(p.value.shape), p.value.data == nullptr ? " without values" : "");
}

/// Describes what must be equal on all ranks: the options, then one line per parameter and buffer.
std::string describe(std::span<const Parameter> parameters, std::span<const Parameter> buffers,
                     const ReducerOptions& o, bool on_host) {
  std::string text = fmt::format(
      "first_bucket_cap {}, bucket_cap {}, find_unused_parameters {}, "
      "gradient_as_bucket_view {}, rebuild_buckets {}, check_steps {}, divisor {}, "
      "average_over_rows {}, order_fixed {}, reproducible {}, in host memory {}\n",
      o.first_bucket_cap, o.bucket_cap, o.find_unused_parameters, o.gradient_as_bucket_view,
      o.rebuild_buckets, o.check_steps, o.divisor, o.average_over_rows, o.order_fixed,
      o.reproducible, on_host);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    text += describe("parameter", i, parameters[i]);
  for (std::size_t i = 0; i < buffers.size(); ++i) text += describe("buffer", i, buffers[i]);
  return text;
}

std::string problem_of(const char* what, std::size_t id, const Parameter& p, Device device,
                       bool gradients) {
  const TensorView& v = p.value;
  if (!(v.device == device))
    return fmt::format("{} {} '{}' is on {}; the group works on {}", what, id, p.name,
                       to_string(v.device), to_string(device));
  if (gradients && !is_float(v.dtype) && !is_complex(v.dtype))
    return fmt::format("{} {} '{}' is {}; gradients are floats or complex numbers", what, id,
                       p.name, tutti::name_of(v.dtype));
  if (!gradients && v.data == nullptr && v.shape.numel() != 0)
    return fmt::format("{} {} '{}' is null; pass the array's address", what, id, p.name);
  return {};
}

/// Returns an error text for this rank's arguments; empty if they are valid.
std::string find_problem(ProcessGroup& group, std::span<const Parameter> parameters,
                         std::span<const Parameter> buffers, const ReducerOptions& options) {
  if (options.first_bucket_cap <= 0 || options.bucket_cap <= 0)
    return fmt::format("first_bucket_cap is {} and bucket_cap is {}; they must be > 0",
                       options.first_bucket_cap, options.bucket_cap);
  if (!(options.divisor >= 0) || std::isinf(options.divisor))
    return fmt::format("divisor is {}; it must be > 0, or 0 for the number of ranks",
                       options.divisor);
  if (options.timeout.count() < 0)
    return fmt::format("timeout is {} ns; it must be >= 0", options.timeout.count());
  const Device device = group.memory().device();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (auto text = problem_of("parameter", i, parameters[i], device, true); !text.empty())
      return text;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (auto text = problem_of("buffer", i, buffers[i], device, false); !text.empty()) return text;
  return {};
}

/// Removes the first line from `text` and returns it.
std::string_view take_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const auto line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace

std::string name_of(std::span<const Parameter> parameters, std::size_t id) {
  return fmt::format("parameter {} '{}'", id, parameters[id].name);
}

void compare_descriptions(ProcessGroup& group, std::span<const Parameter> parameters,
                          std::span<const Parameter> buffers, const ReducerOptions& options) {
  const auto problem = find_problem(group, parameters, buffers, options);
  const bool on_host = group.memory().device().type == DeviceType::cpu;
  const auto mine =
      problem.empty() ? describe(parameters, buffers, options, on_host) : problem + "\n";
  tutti::internal::Hash hash;
  hash.add(mine);
  const CallOptions call{.timeout = options.timeout, .name = "ddp start"};
  const auto all = all_gather_bytes(group, fmt::format("{:016x}", hash.value()), call);
  const auto other = std::ranges::find_if(all, [&](const auto& h) { return h != all.front(); });
  if (other == all.end()) {
    if (!problem.empty()) tutti::fail(Errc::invalid_argument, "GradientReducer: " + problem);
    return;
  }
  const auto rank = static_cast<int>(other - all.begin());
  std::string of_first = group.rank() == 0 ? mine : "";
  std::string of_other = group.rank() == rank ? mine : "";
  broadcast_bytes(group, of_first, 0, call);
  broadcast_bytes(group, of_other, rank, call);
  if (!problem.empty()) tutti::fail(Errc::invalid_argument, "GradientReducer: " + problem);
  std::string_view a = of_first;
  std::string_view b = of_other;
  std::string_view line_a = take_line(a);
  std::string_view line_b = take_line(b);
  while (line_a == line_b && !(a.empty() && b.empty())) {
    line_a = take_line(a);
    line_b = take_line(b);
  }
  tutti::internal::failf(
      Errc::mismatch,
      "GradientReducer: ranks describe different models: rank 0: {}; rank {}: {}; every rank has "
      "to pass the same parameters, buffers and options",
      line_a.empty() ? "nothing more" : line_a, rank, line_b.empty() ? "nothing more" : line_b);
}

}  // namespace tutti::ddp
