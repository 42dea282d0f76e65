#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <tutti/metrics.hpp>

#include "group/call.hpp"
#include "kernels/gradients.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/saved_state.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] metrics {
namespace {

using internal::failf;

constexpr std::string_view magic = "TUTTUM01";
constexpr std::string_view text = "saved state of scored rows";

/// Checks an array with a number for each of `rows` rows.
void check(std::string_view what, const ConstTensorView& array, std::int64_t rows, bool right_dtype,
           std::string_view dtypes) {
  if (!right_dtype)
    failf(Errc::invalid_argument, "{} are {}; they must be {}", what, name_of(array.dtype), dtypes);
  if (array.device.type != DeviceType::cpu)
    failf(Errc::unsupported, "{} are on {}; metrics take arrays in host memory: copy them there",
          what, to_string(array.device));
  if (array.shape.ndim() < 1 || array.shape.ndim() > 2 || array.shape.row_numel() != 1 ||
      array.shape.rows() != rows)
    failf(Errc::invalid_argument, "{} are {}, with {} scores; they must be [{}] or [{}, 1]", what,
          to_string(array.shape), rows, rows, rows);
  if (array.data == nullptr && rows != 0)
    failf(Errc::invalid_argument, "{} are {}, but their address is null", what,
          to_string(array.shape));
}

std::vector<double> to_doubles(const ConstTensorView& array) {
  std::vector<double> all(static_cast<std::size_t>(array.shape.numel()));
  const auto convert = [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(array.data);
    for (std::size_t i = 0; i < all.size(); ++i)
      if constexpr (std::is_arithmetic_v<T>)
        all[i] = static_cast<double>(from[i]);
      else
        all[i] = static_cast<float>(from[i]);
  };
  if (array.dtype == DType::i64)
    convert(std::int64_t{});
  else if (array.dtype == DType::u8 || array.dtype == DType::boolean)
    convert(std::uint8_t{});
  else
    internal::visit_gradient(array.dtype, convert);
  return all;
}

constexpr std::string_view float_dtypes = "f16, bf16, f32 or f64";

}  // namespace

void ScoredRows::add(const ConstTensorView& scores, const ConstTensorView& targets,
                     const ConstTensorView& weights) try {
  const auto n = scores.shape.rows();
  const auto of_targets = targets.dtype;
  check("scores", scores, n, internal::has_gradient(scores.dtype), float_dtypes);
  check("targets", targets, n,
        of_targets == DType::i64 || of_targets == DType::u8 || of_targets == DType::boolean,
        "i64, u8 or boolean");
  if (weighted_)
    check("weights", weights, n, internal::has_gradient(weights.dtype), float_dtypes);
  else if (weights.shape.numel() != 0)
    failf(Errc::invalid_argument,
          "weights are {}, but these rows have none; make them with ScoredRows(true)",
          to_string(weights.shape));
  const auto score = to_doubles(scores);
  const auto target = to_doubles(targets);
  const auto weight = weighted_ ? to_doubles(weights) : std::vector<double>(score.size(), 1.0);
  const auto batch = batches_++;
  std::vector<Row> rows;
  rows.reserve(score.size());
  for (std::size_t i = 0; i < score.size(); ++i) {
    const auto refuse = [&](std::string_view what, double value, std::string_view must) {
      if (invalid_.empty())
        invalid_ = fmt::format("{}[{}] of batch {} is {}; it must {}", what, i, batch, value, must);
    };
    if (std::isnan(score[i])) return refuse("scores", score[i], "be a number");
    if (target[i] != 0 && target[i] != 1) return refuse("targets", target[i], "be 0 or 1");
    if (!(weight[i] >= 0) || std::isinf(weight[i]))
      return refuse("weights", weight[i], "be finite and not negative");
    if (weight[i] != 0) rows.push_back({score[i] + 0.0, target[i] == 0 ? -weight[i] : weight[i]});
  }
  rows_.insert(rows_.end(), rows.begin(), rows.end());
} catch (...) {
  internal::end_calls(nullptr);
}

void ScoredRows::merge(const ScoredRows& other) try {
  if (weighted_ != other.weighted_)
    failf(Errc::invalid_argument, "rows {} weights cannot be merged with rows {} weights",
          weighted_ ? "with" : "without", other.weighted_ ? "with" : "without");
  if (invalid_.empty()) invalid_ = other.invalid_;
  const auto old = rows_.size();
  const auto added = other.rows_.size();  // `other` may be this object.
  rows_.resize(old + added);
  std::copy_n(other.rows_.begin(), added, rows_.begin() + static_cast<std::ptrdiff_t>(old));
} catch (...) {
  internal::end_calls(nullptr);
}

void ScoredRows::reset() noexcept {
  rows_.clear();
  batches_ = 0;
  invalid_.clear();
}

std::string ScoredRows::save() const try {
  if (!invalid_.empty()) fail(Errc::invalid_argument, invalid_);
  internal::Writer out;
  out.reserve(16 + rows_.size() * sizeof(Row));
  out.u8(weighted_ ? 1 : 0).u64(rows_.size());
  for (const auto& row : rows_) out.f64(row.score).f64(row.weight);
  return internal::seal(magic, out);
} catch (...) {
  internal::end_calls(nullptr);
}

void ScoredRows::load(std::string_view state) try {
  auto in = internal::unseal(magic, text, state).content;
  if (const bool weighted = in.u8() != 0; weighted != weighted_)
    failf(Errc::invalid_argument, "the saved rows are {} weights, these are {}; make them alike",
          weighted ? "with" : "without", weighted_ ? "with" : "without");
  const auto numbers = in.numbers<double>(2 * in.u64());
  in.end();
  ScoredRows loaded(weighted_);
  for (std::size_t i = 0; i < numbers.size(); i += 2)
    loaded.rows_.push_back({numbers[i], numbers[i + 1]});
  *this = std::move(loaded);
} catch (...) {
  internal::end_calls(nullptr);
}

}  // namespace metrics
}  // namespace tutti
