#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/cross_entropy.hpp>

#include "support/recorded.hpp"

// Compares with torch 2.15 on one process: tests/data/losses/cross_entropy.txt, made by
// tests/data/losses/record_cross_entropy.py.

namespace tutti::test {
namespace {

using losses::CrossEntropyOptions;
using losses::LossResult;
using losses::Reduction;

enum Field : std::size_t { size_of_logits, logits, targets, each, total, gradient };

CrossEntropyOptions options_of(const Recorded& c) {
  static const std::map<std::string, Reduction> reductions{
      {"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}};
  CrossEntropyOptions o{.classes = static_cast<std::int64_t>(c.numbers.at(size_of_logits).at(1)),
                        .label_smoothing = c.number("label_smoothing"),
                        .ignore_index = c.integer("ignore_index"),
                        .reduction = reductions.at(c.options.at("reduction"))};
  if (c.options.contains("pos_weight")) o.pos_weight = c.number("pos_weight");
  if (c.options.contains("weight")) {
    auto list = c.options.at("weight");
    std::ranges::replace(list, ',', ' ');
    o.weight = numbers(list);
  }
  return o;
}

template <typename T>
void expect_recorded(const Recorded& c, double tolerance) {
  const std::vector<T> z(c.numbers[logits].begin(), c.numbers[logits].end());
  const std::vector<std::int64_t> y(c.numbers[targets].begin(), c.numbers[targets].end());
  const auto options = options_of(c);
  const LossResult got =
      losses::CrossEntropy(options)({view(std::span(z), {std::ssize(y), options.classes}), y});
  const double want = c.numbers[total].at(0);
  EXPECT_NEAR(got.loss, want, tolerance * (1 + std::abs(want)));
  ASSERT_EQ(got.per_element.size(), c.numbers[each].size());
  for (std::size_t i = 0; i < got.per_element.size(); ++i)
    EXPECT_NEAR(got.per_element[i], c.numbers[each][i], tolerance * (1 + c.numbers[each][i]));
  const auto& slopes = c.numbers[gradient];
  ASSERT_EQ(got.grad.shape().numel(), std::ssize(slopes));
  const auto* grad = static_cast<const T*>(got.grad.data());
  double largest = 1;
  for (const double g : slopes) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < slopes.size(); ++i)
    EXPECT_NEAR(static_cast<double>(grad[i]), slopes[i], tolerance * largest) << "gradient " << i;
}

TEST(CrossEntropyReference, OneProcessIsWhatTorchSays) {
  const auto cases = read_recorded(RECORDED "/cross_entropy.txt");
  ASSERT_EQ(cases.size(), 108U);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    ASSERT_EQ(c.numbers.size(), 6U);
    if (c.words.starts_with("f32"))
      expect_recorded<float>(c, 1e-6);  // torch's rounding.
    else
      expect_recorded<double>(c, 1e-10);
  }
}

}  // namespace
}  // namespace tutti::test
