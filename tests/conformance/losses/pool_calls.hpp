#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

#include "conformance/cells.hpp"

// Sequences of calls of the ranking losses, and the results of one process.

namespace tutti::test {

/// Rows as arguments of a ranking loss.
struct PoolRows {
  std::int64_t classes = 1;
  std::vector<double> logits{};
  std::vector<std::int64_t> targets{};
  std::vector<std::uint8_t> iid{};
  std::optional<std::vector<double>> weights{};

  std::int64_t count() const { return std::ssize(targets); }
  PoolRows part(std::int64_t first, std::int64_t n) const;
  void append(const PoolRows& more);
};

/// Some scores are tied, some rows ignored, some not independent; of several classes the last has
/// no positive. Scores are floats.
PoolRows make_pool_rows(std::int64_t count, std::int64_t classes, std::uint64_t seed);
/// Sets weights of the rows: floats, some of them 0 or 1.
void add_weights(PoolRows& rows, std::uint64_t seed);

/// A loss with all options but its pool.
struct RankingKind {
  std::string name;
  std::function<std::unique_ptr<losses::RankingLoss>(std::int64_t classes,
                                                     const losses::PoolOptions& pool)>
      make;
};
RankingKind smooth_ap_kind(double temperature = 0.05);
RankingKind recall_kind();
RankingKind trapezoid_kind();
RankingKind pairwise_kind();
RankingKind live_kind();  ///< pAUC of the positives of the call.
std::vector<RankingKind> ranking_kinds();

/// One call with this number of rows of all ranks together.
struct PoolCall {
  std::int64_t rows = 0;
  bool training = true;
  bool ignored = false;  ///< All of them.
  bool weighted = false;
};

struct PoolSequence {
  std::int64_t classes = 1;
  std::vector<PoolCall> calls;
  bool in_float = false;
  bool large = false;  ///< More rows than are inlined in the first message.

  PoolRows rows(std::size_t call) const;
};
/// Calls with: no rows, all rows ignored, more rows than a queue of `queue`, one row, an
/// evaluation.
PoolSequence pool_sequence(std::int64_t classes, std::int64_t queue, bool large);

/// The result of a call, with the gradient of its rows in double.
struct PoolOutcome {
  double loss = 0;
  std::vector<double> per_class{};
  std::vector<losses::ClassStatus> status{};
  std::vector<double> grad{};
  std::int64_t queued = 0;
};

/// Calls `loss` with these rows as f64 or f32.
PoolOutcome call_pool(losses::RankingLoss& loss, ProcessGroup* group, const PoolRows& rows,
                      bool in_float = false, bool training = true);

/// Results of one process for every call, with its own queue.
std::vector<PoolOutcome> alone(const PoolSequence& sequence, const RankingKind& kind,
                               const losses::PoolOptions& pool);
/// The same without a queue: appends a list of earlier rows to each batch.
std::vector<PoolOutcome> by_list_of_rows(const PoolSequence& sequence, const RankingKind& kind,
                                         std::int64_t queue);

/// The split of a call's rows over the ranks, another one for every call.
Layout pool_split(std::int64_t rows, int ranks, std::size_t call);

/// Checks this rank's result: loss and gradient equal those of one process. GradScale is sum.
void expect_part(const PoolOutcome& got, const PoolOutcome& want, const ProcessGroup& group,
                 const Layout& split, const PoolSequence& sequence);

/// Makes calls [first, last) of the sequence on this rank.
void expect_calls(losses::RankingLoss& loss, ProcessGroup& group, const PoolSequence& sequence,
                  std::span<const PoolOutcome> want, std::size_t first, std::size_t last);

}  // namespace tutti::test
