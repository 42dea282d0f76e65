#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tutti/error.hpp>

#include "report/record.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// The outcome that explains the others: not the one of a rank that was only told to stop.
/// Null when all went well.
const Outcome* first_cause(const std::vector<Outcome>& outcomes);

/// The library's error in an outcome; empty when it is another exception.
std::optional<Error> library_error(const Outcome& outcome);

/// One line of what went wrong.
std::string error_text(const Outcome& outcome);

/// Several lines for a call that did not come together (timeout, mismatch): who entered it, who
/// did not and what that rank did last, as far as the traces of `outcomes` tell.
std::string hang_report(const std::vector<Outcome>& outcomes, const World& world,
                        std::chrono::nanoseconds timeout);

/// Lines about the ranks from which no word came; nothing when all spoke.
std::string silent_ranks(const std::vector<Outcome>& outcomes, const World& world);

}  // namespace tutti::tool
