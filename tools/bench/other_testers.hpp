#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/dtype.hpp>

#include "bench/collectives.hpp"

// What nccl-tests, the OSU benchmarks, MPI and torch call the things that `tutti bench` names
// otherwise.

namespace tutti::tool {

/// A name of another tester, and what it is here.
using NameOfOthers = std::pair<std::string_view, std::string_view>;

/// Also by the names of nccl-tests, torch and C.
std::optional<DType> find_dtype(std::string_view name) noexcept;

/// Also by the names of MPI, nccl-tests ("all_reduce_perf") and the OSU benchmarks
/// ("osu_allreduce"). Null for an unknown name.
const Collective* find_by_any_name(std::string_view name);

/// The name of a RankAgg; nccl-tests has numbers for it.
std::string_view own_rank_agg(std::string_view name) noexcept;

/// Options that are refused: of nccl-tests without an equal here, with what to do instead, and of
/// later releases.
std::span<const NameOfOthers> options_not_here() noexcept;

}  // namespace tutti::tool
