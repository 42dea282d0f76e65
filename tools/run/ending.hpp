#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/exit_code.hpp"
#include "report/record.hpp"
#include "run/ranks.hpp"
#include "run/source.hpp"

// The common end of ranks that are processes. Each rank sends its outcome to rank 0, which decides
// the exit status and prints; all ranks exit with that status. Uses the store, which works when the
// group does not. The library's errors name the ranks missing from a call.

namespace tutti::tool {

/// The outcome that most likely caused the others: a rank that failed by itself before one that
/// timed out, lost a peer, was aborted or is silent. Null if all ranks succeeded.
const Outcome* first_cause(const std::vector<Outcome>& outcomes);

/// Prints the cause of the ranks' failure, sets it in the record and returns the exit status.
/// @param skip_unavailable  an unavailable part is reported as skipped, not as an error.
Exit report_failure(const std::vector<Outcome>& outcomes, const Outcome& cause,
                    std::chrono::nanoseconds timeout, bool skip_unavailable, RunRecord& record,
                    std::FILE* err);

/// The result of `run`. With `skip_unavailable`, a failure `unavailable` is a line on `err` and the
/// result `skipped`.
Exit or_skipped(const RunOptions& options, std::FILE* err, const std::function<Exit()>& run);

/// Runs `body` on the ranks of this process. Ranks that are processes all exit with the status that
/// rank 0 concludes from all outcomes. @param patience  time that rank 0 waits for the other
/// outcomes after its own outcome.
Exit run_to_end(const RankSource& source, const RunOptions& options, const RankBody& body,
                const std::function<std::chrono::nanoseconds(const Outcome& own)>& patience,
                const std::function<Exit(const std::vector<Outcome>&)>& conclude);

}  // namespace tutti::tool
