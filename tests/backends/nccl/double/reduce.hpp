#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace tutti::test::nccl_double {

/// The contribution of one rank to a reduction.
struct Reduction {
  ncclRedOp_t op = ncclSum;  ///< ncclNumOps for a product with the scalar, then the sum.
  std::array<std::byte, 8> scalar{};
};
std::size_t size_of(ncclDataType_t type);
void reduce(ncclDataType_t type, std::span<const std::vector<std::byte>> inputs,
            std::span<const Reduction> how, std::vector<std::byte>& out);

}  // namespace tutti::test::nccl_double
