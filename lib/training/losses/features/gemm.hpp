#pragma once

// Products of matrices by Eigen. Only eigen_products.cpp includes it; that source is compiled once
// per instruction set.

namespace tutti {
namespace losses {
struct MatrixProduct;
}
namespace internal::losses {

using EigenProduct = void(const tutti::losses::MatrixProduct& product);
EigenProduct product_baseline;
EigenProduct product_avx2;
EigenProduct product_avx512;

/// Returns the fastest product for the instruction set kernel_target(), or null in builds without
/// Eigen.
EigenProduct* eigen_product() noexcept;

}  // namespace internal::losses
}  // namespace tutti
