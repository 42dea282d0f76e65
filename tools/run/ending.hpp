#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/exit_code.hpp"
#include "report/record.hpp"
#include "run/ranks.hpp"
#include "run/source.hpp"

// The common end of ranks that are processes: each sends its outcome to rank 0, which decides and
// prints, and all exit with its status. Uses the store, which works when the group does not. The
// ranks missing from a call are those that the library names.

namespace tutti::tool {

/// The outcome that explains the others; never that of a rank that was only told to stop. Null if
/// all succeeded.
const Outcome* first_cause(const std::vector<Outcome>& outcomes);

/// Prints the cause of the ranks' failure and sets it in the record. @param skip_unavailable
/// unavailable parts are no error.
Exit report_failure(const std::vector<Outcome>& outcomes, const Outcome& cause,
                    std::chrono::nanoseconds timeout, bool skip_unavailable, RunRecord& record,
                    std::FILE* err);

/// Runs `body` on the ranks of this process. Ranks that are processes all exit with the status that
/// rank 0 concludes from all outcomes. @param patience  time for which rank 0 waits for the other
/// outcomes after its own.
Exit run_to_end(const RankSource& source, const RunOptions& options, const RankBody& body,
                const std::function<std::chrono::nanoseconds(const Outcome& own)>& patience,
                const std::function<Exit(const std::vector<Outcome>&)>& conclude);

}  // namespace tutti::tool
