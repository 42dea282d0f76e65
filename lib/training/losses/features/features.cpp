#include <tutti/losses/features.hpp>

#include <cmath>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/features/feature_rows.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] losses {
namespace {

using internal::failf;
using internal::losses::block_columns;
using internal::losses::block_rows;

void check_scale(std::string_view loss, double scale) {
  // The range keeps products with features and their quotients finite in float.
  if (!(scale >= 1e-6 && scale <= 1e6))
    failf(Errc::invalid_argument, "{}: logit_scale is {}; it must be between 1e-6 and 1e6", loss,
          scale);
}

void check_bias(std::string_view loss, double bias) {
  if (!(std::abs(bias) <= 1e30))
    failf(Errc::invalid_argument, "{}: bias is {}; it must be between -1e30 and 1e30", loss, bias);
}

void check_engine(std::string_view loss, const FeatureEngine& engine) {
  if (engine.threads < 1)
    failf(Errc::invalid_argument, "{}: threads is {}; it must be 1 or more", loss, engine.threads);
  const auto check = [&](std::string_view what, std::int64_t size, std::int64_t unit) {
    if (size < unit || size % unit != 0 || size > INT32_MAX)
      failf(Errc::invalid_argument, "{}: {} is {}; it must be a multiple of {} below 2^31", loss,
            what, size, unit);
  };
  check("tile_rows", engine.tile_rows, block_rows);
  check("tile_columns", engine.tile_columns, block_columns);
}

}  // namespace

FeatureLoss::FeatureLoss(std::string_view name, double logit_scale, std::optional<double> bias,
                         GradScale grad_scale, const FeatureEngine& engine) try
    : name_(name),
      logit_scale_(logit_scale),
      bias_(bias),
      grad_scale_(grad_scale),
      engine_(engine) {
  check_scale(name, logit_scale);
  if (bias) check_bias(name, *bias);
  check_engine(name, engine);
} catch (...) {
  internal::end_calls(nullptr);
}

FeatureLoss::FeatureLoss(FeatureLoss&&) noexcept = default;
FeatureLoss& FeatureLoss::operator=(FeatureLoss&&) noexcept = default;
FeatureLoss::~FeatureLoss() = default;

void FeatureLoss::set_logit_scale(double logit_scale) {
  check_scale(name_, logit_scale);
  logit_scale_ = logit_scale;
}

void FeatureLoss::set_bias(double bias) {
  if (!bias_)
    failf(Errc::invalid_argument, "{}: this loss has no bias; only that of SigLip can be set",
          name_);
  check_bias(name_, bias);
  bias_ = bias;
}

}  // namespace losses
}  // namespace tutti
