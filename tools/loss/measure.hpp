#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/losses/loss.hpp>

#include "common/message.hpp"
#include "loss/compare.hpp"
#include "loss/pairs.hpp"
#include "loss/problem.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// The calls of each loss. The same on every rank.
struct LossPlan {
  LossProblem problem{};
  std::int64_t calls = 1;   ///< Calls of a row that are compared.
  std::int64_t rounds = 5;  ///< Further calls, which are timed.
  double tolerance = 0;
};

/// Cost of the calls after the compared calls: first the timed calls, then one for peak memory.
struct LossCost {
  std::vector<double> samples_us{};
  std::uint64_t evaluations = 0;  ///< Evaluations of the first timed call.
  std::optional<std::int64_t> peak_extra_bytes{};
};

/// Results of this process without a group.
struct OneProcess {
  std::vector<losses::LossResult> calls{};
  LossCost cost{};
  std::optional<double> temperature{};
  std::optional<std::int64_t> queued{};  ///< After the compared calls.
  std::optional<PairTime> pairs{};
};
/// @param measured  false: the compared calls only.
OneProcess compute_alone(LossKind kind, const LossPlan& plan, bool measured);

/// Results of one rank of the group.
struct OfRank {
  LossDifferences differences{};
  double loss = 0;              ///< Loss of the last compared call.
  double gradient_squares = 0;  ///< Sum over its own rows.
  LossCost cost{};
};
void parts(Message& message, OfRank& rank);  ///< For the message to rank 0.

/// @param layout          the ranks' rows in a call.
/// @param watches_memory  set on one rank of each process.
OfRank compute_together(Rank& rank, LossKind kind, const LossPlan& plan, const RowLayout& layout,
                        const OneProcess& alone, bool watches_memory);

}  // namespace tutti::tool
