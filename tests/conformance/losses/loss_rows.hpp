#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

#include "conformance/cells.hpp"

// Rows for losses, and parts of them for the ranks.

namespace tutti::test {

/// Rows of one process.
struct LossRows {
  std::int64_t classes = 1;
  std::vector<double> logits;
  std::vector<std::int64_t> targets;

  std::int64_t count() const { return std::ssize(targets); }

  /// A selection of rows as a batch of doubles or floats.
  template <typename T>
  struct Batch {
    std::int64_t classes = 1;
    std::vector<T> logits;
    std::vector<std::int64_t> targets;

    losses::Batch view() const {
      return {{logits.data(), dtype_of<T>, {std::ssize(targets), classes}}, targets};
    }
  };
  template <typename T = double>
  Batch<T> part(std::int64_t first, std::int64_t n) const {
    const auto logit = logits.begin() + first * classes;
    return {classes,
            {logit, logit + n * classes},
            {targets.begin() + first, targets.begin() + first + n}};
  }
  template <typename T = double>
  Batch<T> all() const {
    return part<T>(0, count());
  }
};

/// Every fifth row is ignored.
inline LossRows make_loss_rows(std::int64_t count, std::int64_t classes, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> score(0, 3);
  LossRows rows{classes, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < classes; ++c) rows.logits.push_back(score(random));
    const auto some = static_cast<std::int64_t>(random() % 1000);
    rows.targets.push_back(i % 5 == 4     ? losses::default_ignore_index
                           : classes == 1 ? some % 3 / 2
                                          : some % classes);
  }
  return rows;
}

/// Splits of `count` rows over the ranks.
inline std::vector<Layout> splits_of(std::int64_t count, int ranks) {
  std::vector<Layout> splits;
  for (Layout split : layouts(ranks)) {
    split.back() += count - total(split);
    if (split.back() >= 0) splits.push_back(split);
  }
  EXPECT_FALSE(splits.empty());
  return splits;
}

template <typename T = double>
std::vector<double> values_of(const Tensor& tensor) {
  const auto* data = static_cast<const T*>(tensor.data());
  return {data, data + tensor.shape().numel()};
}

}  // namespace tutti::test
