#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/exit_code.hpp"
#include "report/record.hpp"
#include "run/ranks.hpp"
#include "run/source.hpp"

// How ranks that are processes end together: each tells rank 0 how it went, rank 0 judges and
// prints, and all leave with its verdict. Through the store, which works when the group does not.

namespace tutti::tool {

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
