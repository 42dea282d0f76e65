#pragma once

#include <string_view>

#include "report/record.hpp"
#include "run/control.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// Sends every rank's host, process and plan to rank 0. Returns the world; on ranks other than 0 it
/// lacks the ranks and hosts. @throws Failure usage on rank 0 if `plan` differs between ranks.
World collect_world(Rank& rank, Control& control, bool threads, std::string_view plan);

}  // namespace tutti::tool
