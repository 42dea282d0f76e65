#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

#include "group/prepare.hpp"
#include "losses/row_queue.hpp"

// Small exchanges of losses: sums of a few numbers, and the queue to be saved. A null group is a
// rank alone.

namespace tutti::internal::losses {

using tutti::losses::GradScale;

/// Throws the Error of `check`, with the loss as its place.
template <typename Check>
void named(std::string_view loss, const Check& check) {
  if (const auto why = refusal_of(check))
    throw Error(why->code(), why->message(), {.operation = std::string(loss)});
}

/// Collective: the sums over ranks of `width` numbers, in the order of the ranks. `compute` writes
/// this rank's; its Error is one on every rank.
/// @throws Error also when the options, in words, are not those of the others.
std::vector<double> sums_over_ranks(ProcessGroup* group, std::string_view loss,
                                    std::string_view options, std::size_t width,
                                    const std::function<void(std::span<double> mine)>& compute,
                                    const CallOptions& call);

/// Collective: the queue's rows of every rank, in the order of their numbers.
/// @throws Error also when the options, in words, or the queues are not those of the others.
RowQueue::Rows gather_queue(ProcessGroup* group, std::string_view loss, std::string_view options,
                            const RowQueue& queue, std::int64_t classes, const CallOptions& call);

inline double scale_of(GradScale scale, const ProcessGroup* group) noexcept {
  return scale == GradScale::for_mean_reducer && group != nullptr ? group->size() : 1.0;
}

}  // namespace tutti::internal::losses
