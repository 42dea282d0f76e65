#pragma once

#include <array>

#include <tutti/gather.hpp>

namespace tutti::test {

inline constexpr std::array<GatherAlgo, gather_algo_count> all_gather_algos{
    GatherAlgo::automatic, GatherAlgo::native, GatherAlgo::direct,
    GatherAlgo::ring,      GatherAlgo::padded, GatherAlgo::broadcasts};

}  // namespace tutti::test
