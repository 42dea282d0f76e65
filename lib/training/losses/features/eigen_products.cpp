// Compiled once per instruction set, with TUTTI_PRODUCT as the name of the function and with
// `Eigen` defined as another name each time: the linker keeps one copy of each template's instance,
// which must not be that of a processor that is newer than this one. For the same reason this file
// uses nothing of the standard library.
#define EIGEN_DONT_PARALLELIZE  // The losses have threads of their own.
#define EIGEN_NO_IO
#include <Eigen/Core>

#include <tutti/losses/features.hpp>

#include "losses/features/gemm.hpp"

namespace tutti::internal::losses {
namespace {

using tutti::losses::MatrixProduct;

template <typename T>
void eigen_multiply(const MatrixProduct& p) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using In = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
  using Out = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
  const In a(static_cast<const T*>(p.a), p.m, p.k, Eigen::OuterStride<>(p.a_stride));
  Out c(static_cast<T*>(p.c), p.m, p.n, Eigen::OuterStride<>(p.c_stride));
  const auto* b = static_cast<const T*>(p.b);
  if (p.b_transposed)
    c.noalias() = a * In(b, p.n, p.k, Eigen::OuterStride<>(p.b_stride)).transpose();
  else
    c.noalias() = a * In(b, p.k, p.n, Eigen::OuterStride<>(p.b_stride));
}

/// Blocks of products have the same sizes on every machine, and so sums the same order.
bool set_caches() {
  Eigen::setCpuCacheSizes(32 << 10, 1 << 20, 4 << 20);
  return true;
}

}  // namespace

void TUTTI_PRODUCT(const MatrixProduct& product) {
  static const bool set = set_caches();
  static_cast<void>(set);
  if (product.dtype == DType::f64)
    eigen_multiply<double>(product);
  else
    eigen_multiply<float>(product);
}

}  // namespace tutti::internal::losses
