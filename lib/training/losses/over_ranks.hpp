#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>
#include <tutti/row_layout.hpp>

#include "group/prepare.hpp"
#include "losses/row_queue.hpp"

// Small exchanges of losses: numbers of the ranks, and the gather of the queue. A null group means
// a single process.

namespace tutti::internal::losses {

/// Runs `check`. Rethrows its Error with the loss as the operation.
template <typename Check>
void named(std::string_view loss, const Check& check) {
  if (const auto why = refusal_of(check))
    throw Error(why->code(), why->message(), {.operation = std::string(loss)});
}

/// Collective. Returns the sums of `width` numbers of each rank, added in rank order. `compute`
/// writes this rank's numbers; if it throws, every rank gets an Error.
/// @throws Error mismatch if `words` (the options) or the calls of the ranks differ.
std::vector<double> sums_over_ranks(ProcessGroup* group, std::string_view loss,
                                    std::string_view words, std::size_t width,
                                    const std::function<void(std::span<double> mine)>& compute,
                                    const CallOptions& options);

/// Collective. Returns the rows that all ranks have in the queue, ordered by number.
/// @throws Error mismatch if `words`, the queues or the calls of the ranks differ.
RowQueue::Rows gather_queue(ProcessGroup* group, std::string_view loss, std::string_view words,
                            const RowQueue& queue, std::int64_t classes,
                            const CallOptions& options);

/// Collective. Returns the rows of all ranks, [rows.total(), ...]. `mine`: rows[rank] rows.
Tensor all_rows(ProcessGroup& group, const ConstTensorView& mine, const RowLayout& rows,
                const CallOptions& options);
/// Collective. Each rank passes the rows of its slice of `from`, and gets those of its slice of
/// `to`.
Tensor move_rows(ProcessGroup& group, const ConstTensorView& mine, const RowLayout& from,
                 const RowLayout& to, const CallOptions& options);

}  // namespace tutti::internal::losses
