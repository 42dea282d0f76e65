#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "unit/losses/recorded_losses.hpp"

// Compares losses with a queue to results of the package imbalanced-losses 0.6.0:
// tests/data/losses/queue.txt, made by tests/data/losses/record_queue.py with torch 2.15.

namespace tutti::test {
namespace {

using losses::PoolOptions;
using losses::RankingLoss;

/// Fields of a call.
enum Field : std::size_t { size, logits, targets, each, total, gradient, iid, weight };

struct Sequence {
  Recorded made;
  std::vector<Recorded> calls;

  bool is(const char* word) const { return made.words.find(word) != std::string::npos; }
  std::int64_t classes() const {
    return static_cast<std::int64_t>(calls.at(0).numbers.at(size).at(1));
  }
};

std::vector<Sequence> read_sequences() {
  std::vector<Sequence> all;
  for (const auto& line : read_recorded(RECORDED "/queue.txt")) {
    if (line.words.starts_with("sequence"))
      all.push_back({line, {}});
    else
      all.back().calls.push_back(line);
  }
  return all;
}

std::unique_ptr<RankingLoss> make(const Sequence& s, const PoolOptions& pool) {
  const auto& c = s.made;
  if (s.is("smooth_ap"))
    return std::make_unique<losses::SmoothAp>(
        losses::SmoothApOptions{.classes = s.classes(),
                                .temperature = c.number("temperature"),
                                .reduction = reduction_of(c),
                                .pool = pool});
  if (s.is("recall_at_quantile"))
    return std::make_unique<losses::RecallAtQuantile>(
        losses::RecallAtQuantileOptions{.classes = s.classes(),
                                        .quantile = c.number("quantile"),
                                        .temperature = c.number("temperature"),
                                        .interpolation = interpolation_of(c),
                                        .reduction = reduction_of(c),
                                        .pool = pool});
  auto options = p_auc_options_of(c, s.classes());
  options.pool = pool;
  return std::make_unique<losses::PAucAtBudget>(options);
}

template <typename T>
void expect_sequence(const Sequence& s, const PoolOptions& pool) {
  const auto loss = make(s, pool);
  for (std::size_t i = 0; i < s.calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    const auto& call = s.calls[i];
    const auto& fields = call.numbers;
    if (call.words.starts_with("reset")) loss->reset_queue();
    const auto scores = as<T>(fields.at(logits));
    const auto labels = as<std::int64_t>(fields.at(targets));
    const auto mask =
        fields.size() > iid ? as<std::uint8_t>(fields[iid]) : std::vector<std::uint8_t>();
    losses::Batch batch{view(std::span(scores), {std::ssize(labels), s.classes()}), labels};
    if (!mask.empty()) batch.iid = mask;
    const auto weights = fields.size() > weight ? as<float>(fields[weight]) : std::vector<float>();
    if (fields.size() > weight) batch.weight = weights;
    batch.training = call.words.ends_with("train");
    expect_recorded((*loss)(batch), sizeof(T) == sizeof(float), fields.at(total).at(0),
                    fields.at(each), fields.at(gradient));
  }
}

// The package keeps floats and the places of ignored rows: the recorded scores are floats, and no
// row is ignored.
TEST(LossesQueueReference, CallAfterCallIsWhatThePackageSays) {
  const auto sequences = read_sequences();
  EXPECT_EQ(sequences.size(), 14U);
  for (const auto& s : sequences) {
    SCOPED_TRACE(s.made.words);
    const PoolOptions pool{.queue = s.made.integer("queue")};
    s.is("f32") ? expect_sequence<float>(s, pool) : expect_sequence<double>(s, pool);
  }
}

}  // namespace
}  // namespace tutti::test
