#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/loss.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>

#include "support/recorded.hpp"

// Recorded options of losses, and their expected results.

namespace tutti::test {

template <typename To>
std::vector<To> as(const std::vector<double>& values) {
  std::vector<To> all;
  for (const double value : values) all.push_back(static_cast<To>(value));
  return all;
}

inline losses::Reduction reduction_of(const Recorded& c) {
  using losses::Reduction;
  static const std::map<std::string, Reduction> names{{"mean", Reduction::mean},
                                                      {"sum", Reduction::sum},
                                                      {"none", Reduction::none},
                                                      {"mean_positive", Reduction::mean}};
  return names.at(c.options.at("reduction"));
}
inline bool normalizes_by_positives(const Recorded& c) {
  return c.options.at("reduction") == "mean_positive";
}

inline losses::Interpolation interpolation_of(const Recorded& c) {
  using losses::Interpolation;
  static const std::map<std::string, Interpolation> names{{"linear", Interpolation::linear},
                                                          {"lower", Interpolation::lower},
                                                          {"higher", Interpolation::higher},
                                                          {"nearest", Interpolation::nearest},
                                                          {"midpoint", Interpolation::midpoint}};
  return names.at(c.options.at("interpolation"));
}

inline losses::PAucAtBudgetOptions p_auc_options_of(const Recorded& c, std::int64_t classes) {
  using Options = losses::PAucAtBudgetOptions;
  const auto is = [&c](const char* name, const char* value) {
    return c.options.contains(name) && c.options.at(name) == value;
  };
  return {
      .classes = classes,
      .alpha = c.number("alpha"),
      .beta = c.number("beta"),
      .surrogate = is("surrogate", "pairwise") ? Options::Surrogate::pairwise
                                               : Options::Surrogate::trapezoid,
      .knots = static_cast<int>(c.integer("knots")),
      .tau_scale = is("scale", "band") ? Options::Scale::band : Options::Scale::iqr,
      .basis = is("basis", "population") ? Options::Basis::population : Options::Basis::fpr,
      .temperature = c.number("temperature"),
      .positives = is("positives", "live") ? Options::Positives::live : Options::Positives::pool,
      .interpolation = interpolation_of(c),
      .reduction = reduction_of(c)};
}

/// each: values of the classes, rows or elements; empty if not recorded.
inline void expect_recorded(const losses::LossResult& got, bool is_float, double total,
                            std::span<const double> each, std::span<const double> grad) {
  const double tolerance = is_float ? 1e-6 : 1e-10;
  // The package computes in floats: rounding a score divided by a temperature of 0.01 changes a
  // slope by 1e-5.
  const double slope_tolerance = is_float ? 4e-6 : 1e-10;
  EXPECT_NEAR(got.loss, total, tolerance * (1 + std::abs(total)));
  if (!each.empty()) {
    const auto& terms = got.per_class.empty() ? got.per_element : got.per_class;
    ASSERT_EQ(terms.size(), each.size());
    for (std::size_t i = 0; i < each.size(); ++i) {
      if (std::isnan(each[i])) {
        EXPECT_TRUE(std::isnan(terms[i]));
      } else {
        EXPECT_NEAR(terms[i], each[i], tolerance * (1 + std::abs(each[i])));
      }
    }
  }
  double largest = 1;
  for (const double g : grad) largest = std::max(largest, std::abs(g));
  ASSERT_EQ(got.grad.shape().numel(), std::ssize(grad));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = is_float ? static_cast<const float*>(got.grad.data())[i]
                              : static_cast<const double*>(got.grad.data())[i];
    EXPECT_NEAR(g, grad[i], slope_tolerance * largest) << "gradient " << i;
  }
}

}  // namespace tutti::test
