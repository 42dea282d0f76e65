#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include <tutti/store/store.hpp>

#include "common/exit_code.hpp"
#include "run/ranks.hpp"
#include "run/source.hpp"

// How ranks that are processes end together: each tells rank 0 how it went, rank 0 judges and
// prints, and all leave with its verdict. Through the store, which works when the group does not.

namespace tutti::tool {

/// On the other ranks: sends `own` to rank 0, and gives rank 0's verdict.
/// @throws Error timeout when rank 0 gives none within `patience`.
Exit report_ending(Store& store, const Outcome& own, std::chrono::nanoseconds patience);

/// On rank 0: its own outcome and the others' in rank order. One that sent nothing within
/// `patience` is `silent`.
std::vector<Outcome> collect_endings(Store& store, const Outcome& own, int size,
                                     std::chrono::nanoseconds patience);

/// On rank 0, last: everything is printed and written.
void announce(Store& store, Exit verdict);

/// What a rank that ended so makes the command's.
Exit exit_code_of(const Outcome& outcome);

/// A rank that is a process: all end with what rank 0 concludes from the outcomes of all.
/// `patience`: how long rank 0 waits for the others, `longest`: they for it.
Exit end_together(const RankSource& source, const Outcome& own, std::chrono::nanoseconds patience,
                  std::chrono::nanoseconds longest,
                  const std::function<Exit(const std::vector<Outcome>&)>& conclude);

}  // namespace tutti::tool
