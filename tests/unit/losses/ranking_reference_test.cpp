#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "unit/losses/recorded_losses.hpp"

// Compares with the package imbalanced-losses 0.6.0 on one process:
// tests/data/losses/reference.txt, made by tests/data/losses/record_reference.py with torch 2.15.

namespace tutti::test {
namespace {

using losses::LossResult;

enum Field : std::size_t { size, logits, targets, each, total, gradient, iid, weight };

template <typename T>
LossResult compute(const Recorded& c) {
  const auto rows = as<std::int64_t>(c.numbers.at(size)).at(0);
  const auto columns = as<std::int64_t>(c.numbers.at(size)).at(1);
  const auto values = as<T>(c.numbers.at(logits));
  const auto scores = view(std::span(values), {rows, columns});
  const auto labels = as<std::int64_t>(c.numbers.at(targets));
  const auto weights =
      c.numbers.size() > weight ? as<float>(c.numbers[weight]) : std::vector<float>();
  losses::Batch batch{scores, labels};
  if (c.numbers.size() > weight) batch.weight = weights;
  if (c.words.starts_with("smooth_ap"))
    return losses::SmoothAp({.classes = columns,
                             .temperature = c.number("temperature"),
                             .reduction = reduction_of(c)})(batch);
  if (c.words.starts_with("recall_at_quantile"))
    return losses::RecallAtQuantile({.classes = columns,
                                     .quantile = c.number("quantile"),
                                     .temperature = c.number("temperature"),
                                     .interpolation = interpolation_of(c),
                                     .reduction = reduction_of(c)})(batch);
  if (c.words.starts_with("p_auc_at_budget")) {
    losses::PAucAtBudget loss(p_auc_options_of(c, columns));
    const auto mask =
        c.numbers.size() > iid ? as<std::uint8_t>(c.numbers[iid]) : std::vector<std::uint8_t>();
    if (!mask.empty()) batch.iid = mask;
    return loss(batch);
  }
  if (c.words.starts_with("sigmoid_focal")) {
    const auto yes = as<T>(c.numbers.at(targets));
    // Of the rows, or of the elements.
    if (batch.weight)
      batch.weight = view(std::span(weights), {rows, std::ssize(weights) == rows ? 1 : columns});
    return losses::SigmoidFocal(
        {.alpha = c.number("alpha"), .gamma = c.number("gamma"), .reduction = reduction_of(c)})(
        {.logits = scores,
         .targets = view(std::span(yes), {rows, columns}),
         .weight = batch.weight});
  }
  losses::SoftmaxFocalOptions options{.gamma = c.number("gamma"),
                                      .label_smoothing = c.number("smoothing"),
                                      .background = c.integer("background"),
                                      .reduction = reduction_of(c),
                                      .normalize_by_positives = normalizes_by_positives(c)};
  if (c.options.contains("alpha")) {
    std::istringstream in(c.options.at("alpha"));
    for (std::string word; std::getline(in, word, ',');) options.alpha.push_back(std::stod(word));
  }
  return losses::SoftmaxFocal(options)(batch);
}

TEST(LossesReference, OneProcessIsWhatThePackageSays) {
  const auto cases = read_recorded(REFERENCE_FILE);
  ASSERT_EQ(cases.size(), 256U);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    const bool is_float = c.words.find(" f32 ") != std::string::npos;
    expect_recorded(is_float ? compute<float>(c) : compute<double>(c), is_float,
                    c.numbers.at(total).at(0), c.numbers.at(each), c.numbers.at(gradient));
  }
}

}  // namespace
}  // namespace tutti::test
