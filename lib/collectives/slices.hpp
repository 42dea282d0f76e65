#pragma once

#include <tutti/operation.hpp>

#include "collectives/wire.hpp"

// Slices: each rank folds a slice of the array in rank order; then the slices are collected. These
// serve CallOptions::order_fixed.

namespace tutti::collectives {

void all_reduce_slices(Wire& wire, const Op& op);
void reduce_slices(Wire& wire, const Op& op);

}  // namespace tutti::collectives
