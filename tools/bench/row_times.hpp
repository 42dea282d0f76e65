#pragma once

#include <vector>

#include "bench/record.hpp"
#include "bench/timing.hpp"

namespace tutti::tool {

/// Sets everything in a row that follows from its times: statistics, bandwidths and flags.
/// @param samples_us  of the iterations, combined over the ranks.
/// @param rank_means_us  mean of each rank.
/// @param factor  bus bandwidth / algorithm bandwidth; 0: no byte crosses a link.
void set_times(Row& row, std::vector<double> samples_us, std::vector<double> rank_means_us,
               double factor, const Timing& timing);

}  // namespace tutti::tool
