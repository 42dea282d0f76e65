#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

// Against what the package imbalanced-losses 0.5.1 computed for one process:
// tests/losses/reference.txt, made by tests/losses/record_reference.py with torch 2.15.

namespace tutti::test {
namespace {

using losses::GradScale;
using losses::Interpolation;
using losses::LossResult;
using losses::Reduction;

struct Case {
  std::string line;
  std::string loss;
  bool is_float = false;
  std::map<std::string, std::string> options;
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  std::vector<double> logits, targets, each, total, grad, iid;

  double number(const std::string& name) const { return std::stod(options.at(name)); }
};

std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> all;
  for (std::string word; in >> word;) all.push_back(std::stod(word));  // Also "nan".
  return all;
}

std::vector<Case> read_cases() {
  std::ifstream file(REFERENCE_FILE);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    Case c;
    c.line = line.substr(0, line.find(';'));
    std::istringstream in(line);
    std::string fields[8];
    for (auto& field : fields) std::getline(in, field, ';');
    std::istringstream words(fields[0]);
    std::string dtype;
    words >> c.loss >> dtype;
    c.is_float = dtype == "f32";
    for (std::string word; words >> word;)
      c.options[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    const auto size = numbers(fields[1]);
    c.rows = static_cast<std::int64_t>(size.at(0));
    c.classes = static_cast<std::int64_t>(size.at(1));
    c.logits = numbers(fields[2]);
    c.targets = numbers(fields[3]);
    c.each = numbers(fields[4]);
    c.total = numbers(fields[5]);
    c.grad = numbers(fields[6]);
    c.iid = numbers(fields[7]);
    cases.push_back(c);
  }
  return cases;
}

Reduction reduction_of(const Case& c) {
  static const std::map<std::string, Reduction> names{{"mean", Reduction::mean},
                                                      {"sum", Reduction::sum},
                                                      {"none", Reduction::none},
                                                      {"mean_positive", Reduction::mean_positive}};
  return names.at(c.options.at("reduction"));
}

Interpolation interpolation_of(const Case& c) {
  static const std::map<std::string, Interpolation> names{{"linear", Interpolation::linear},
                                                          {"lower", Interpolation::lower},
                                                          {"higher", Interpolation::higher},
                                                          {"nearest", Interpolation::nearest},
                                                          {"midpoint", Interpolation::midpoint}};
  return names.at(c.options.at("interpolation"));
}

template <typename T>
LossResult compute(const Case& c) {
  const std::vector<T> values(c.logits.begin(), c.logits.end());
  const auto logits = view(std::span(values), {c.rows, c.classes});
  std::vector<std::int64_t> classes;
  for (const double target : c.targets) classes.push_back(static_cast<std::int64_t>(target));
  if (c.loss == "smooth_ap")
    return losses::SmoothAp({.classes = c.classes,
                             .temperature = c.number("temperature"),
                             .reduction = reduction_of(c)})(nullptr, {logits, classes});
  if (c.loss == "recall_at_quantile")
    return losses::RecallAtQuantile({.classes = c.classes,
                                     .quantile = c.number("quantile"),
                                     .temperature = c.number("temperature"),
                                     .interpolation = interpolation_of(c),
                                     .reduction = reduction_of(c)})(nullptr, {logits, classes});
  if (c.loss == "p_auc_at_budget") {
    using Options = losses::PAucAtBudgetOptions;
    const bool pairwise = c.options.at("surrogate") == "pairwise";
    losses::PAucAtBudget loss(
        {.classes = c.classes,
         .alpha = c.number("alpha"),
         .beta = c.number("beta"),
         .surrogate = pairwise ? Options::Surrogate::pairwise : Options::Surrogate::trapezoid,
         .knots = static_cast<int>(c.number("knots")),
         .tau_scale = c.options.at("scale") == "iqr" ? Options::Scale::iqr : Options::Scale::band,
         .basis = c.options.at("basis") == "fpr" ? Options::Basis::fpr : Options::Basis::population,
         .temperature = c.number("temperature"),
         .interpolation = interpolation_of(c),
         .reduction = reduction_of(c)});
    const std::vector<std::uint8_t> iid(c.iid.begin(), c.iid.end());
    if (iid.empty()) return loss(nullptr, {logits, classes});
    return loss(nullptr, {logits, classes, iid});
  }
  if (c.loss == "sigmoid_focal") {
    const std::vector<T> yes(c.targets.begin(), c.targets.end());
    return losses::SigmoidFocal(
        {.alpha = c.number("alpha"), .gamma = c.number("gamma"), .reduction = reduction_of(c)})(
        nullptr, logits, view(std::span(yes), {c.rows, c.classes}));
  }
  losses::SoftmaxFocalOptions options{
      .gamma = c.number("gamma"),
      .label_smoothing = c.number("smoothing"),
      .background = static_cast<std::int64_t>(c.number("background")),
      .reduction = reduction_of(c)};
  if (c.options.contains("alpha")) {
    std::istringstream in(c.options.at("alpha"));
    for (std::string word; std::getline(in, word, ',');) options.alpha.push_back(std::stod(word));
  }
  return losses::SoftmaxFocal(options)(nullptr, logits, classes);
}

TEST(LossesReference, OneProcessIsWhatThePackageSays) {
  const auto cases = read_cases();
  ASSERT_GE(cases.size(), 200U);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.line);
    const auto got = c.is_float ? compute<float>(c) : compute<double>(c);
    const double tolerance = c.is_float ? 1e-6 : 1e-10;
    // The package computes in floats: the rounding of a score divided by a temperature of 0.01 is
    // 1e-5 of a slope.
    const double slope_tolerance = c.is_float ? 4e-6 : 1e-10;
    EXPECT_NEAR(got.loss, c.total[0], tolerance * (1 + std::abs(c.total[0])));
    if (!c.each.empty()) {
      ASSERT_EQ(got.each.size(), c.each.size());
      for (std::size_t i = 0; i < c.each.size(); ++i) {
        if (std::isnan(c.each[i])) {
          EXPECT_TRUE(std::isnan(got.each[i]));
        } else {
          EXPECT_NEAR(got.each[i], c.each[i], tolerance * (1 + std::abs(c.each[i])));
        }
      }
    }
    double largest = 1;
    for (const double g : c.grad) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < c.grad.size(); ++i) {
      const double g = c.is_float ? static_cast<const float*>(got.grad.data())[i]
                                  : static_cast<const double*>(got.grad.data())[i];
      EXPECT_NEAR(g, c.grad[i], slope_tolerance * largest) << "gradient " << i;
    }
  }
}

}  // namespace
}  // namespace tutti::test
