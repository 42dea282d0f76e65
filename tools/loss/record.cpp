#include "loss/record.hpp"

#include <algorithm>

namespace tutti::tool {

LossTime loss_time(std::span<const double> samples_us) {
  const auto [low, high] = std::minmax_element(samples_us.begin(), samples_us.end());
  return {std::ssize(samples_us), median(samples_us), *low, *high};
}

std::optional<double> LossRow::speedup() const {
  if (!pairs) return std::nullopt;
  return std::chrono::duration<double, std::micro>(pairs->time).count() / time_us_one_process.p50;
}

}  // namespace tutti::tool
