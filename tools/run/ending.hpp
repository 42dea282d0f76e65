#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/exit_code.hpp"
#include "report/record.hpp"
#include "run/ranks.hpp"
#include "run/source.hpp"

// How ranks that are processes end together: each sends its outcome to rank 0, which decides and
// prints, and all leave with its exit status. Through the store, which works when the group does
// not. The ranks that are missing from a call are those that the library names.

namespace tutti::tool {

/// The outcome that explains the others: not the one of a rank that was only told to stop.
/// Null when all went well.
const Outcome* first_cause(const std::vector<Outcome>& outcomes);

/// Prints what ended the ranks, and says so in the record.
/// @param skip_unavailable  what cannot be had here is no error.
Exit report_failure(const std::vector<Outcome>& outcomes, const Outcome& cause,
                    std::chrono::nanoseconds timeout, bool skip_unavailable, RunRecord& record,
                    std::FILE* err);

/// Runs `body` on the ranks of this process. Ranks that are processes all end with rank 0's
/// conclusion from the outcomes of all.
/// @param patience  how long rank 0 waits for the others' outcomes once its own is known.
Exit run_to_end(const RankSource& source, const RunOptions& options, const RankBody& body,
                const std::function<std::chrono::nanoseconds(const Outcome& own)>& patience,
                const std::function<Exit(const std::vector<Outcome>&)>& conclude);

}  // namespace tutti::tool
