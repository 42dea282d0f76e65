#pragma once

#include <string_view>

#include "report/record.hpp"
#include "run/control.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// Every rank tells rank 0 where it is and what it is about to do. The world on rank 0; elsewhere
/// without its ranks and hosts.
/// @throws Failure usage on rank 0 when `plan` is not the same everywhere.
World collect_world(Rank& rank, Control& control, bool threads, std::string_view plan);

}  // namespace tutti::tool
