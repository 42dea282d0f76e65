#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rows/gather_arrays.hpp"

namespace tutti::internal {

/// The rows of `in` for each rank. Unchecked: the sum may differ from the rows of `in`.
std::vector<std::int64_t> send_counts(const Rows& send_rows, const ConstTensorView& in, int ranks);

/// Collective. Checks this rank's counts with `check`, then compares dtype and row shape of all
/// ranks, and returns the rows that each rank sends to this one. @throws Error on every rank.
std::vector<std::int64_t> exchange_counts(ProcessGroup& group, std::string_view caller,
                                          const ConstTensorView& in,
                                          const std::vector<std::int64_t>& send_rows,
                                          const CallOptions& options, const CallerCheck& check);

}  // namespace tutti::internal
