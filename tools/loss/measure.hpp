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

/// What is done with each loss. The same on every rank.
struct LossPlan {
  LossProblem problem{};
  std::int64_t calls = 1;   ///< In a row, whose numbers are compared.
  std::int64_t rounds = 5;  ///< Further calls, that are timed.
  double tolerance = 0;
};

/// Of the calls behind the compared ones: the timed ones, then one that is watched for memory.
struct LossCost {
  std::vector<double> samples_us{};
  std::uint64_t evaluations = 0;  ///< Of the first of them.
  std::optional<std::int64_t> peak_extra_bytes{};
};

/// On this process, without a group.
struct OneProcess {
  std::vector<losses::LossResult> calls{};
  LossCost cost{};
  std::optional<double> temperature{};
  std::optional<std::int64_t> queued{};  ///< After the compared calls.
  std::optional<PairTime> pairs{};
};
/// @param measured  false: the compared calls only.
OneProcess compute_alone(LossKind kind, const LossPlan& plan, bool measured);

/// On the ranks together: what one of them found.
struct OfRank {
  LossDifferences differences{};
  double loss = 0;              ///< Of the last compared call.
  double gradient_squares = 0;  ///< Of its own rows.
  LossCost cost{};
};
void parts(Message& message, OfRank& rank);  ///< For rank 0.

/// @param layout          the rows of a call on the ranks.
/// @param watches_memory  one rank of each process does.
OfRank compute_together(Rank& rank, LossKind kind, const LossPlan& plan, const RowLayout& layout,
                        const OneProcess& alone, bool watches_memory);

}  // namespace tutti::tool
