#pragma once

#include <tutti/losses/ranking_loss.hpp>

#include "losses/row_queue.hpp"

namespace tutti::internal::losses {

/// The queue of a loss over features: that of a ranking loss, with features as scores. The row of a
/// loss with candidates is the anchor, then the candidate.
class FeatureQueue final : public tutti::losses::RankingLoss {
 public:
  FeatureQueue(std::string_view name, std::int64_t columns, std::int64_t rows)
      : RankingLoss(name, columns, 1, INT64_MIN, {.queue = rows}) {}
  RowQueue& rows() const noexcept { return queue(); }

 private:
  tutti::losses::LossResult compute(ProcessGroup*, const tutti::losses::Batch&,
                                    const CallOptions&) override {
    return {};
  }
};

}  // namespace tutti::internal::losses
