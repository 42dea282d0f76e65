#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/ddp/device_arithmetic.hpp>
#include <tutti/ddp/power_sgd.hpp>

#include "ddp/segments.hpp"

namespace tutti::ddp {

/// A matrix to compress, and the places of its factors P and Q.
struct Matrix {
  std::size_t id = 0;  // The parameter's; batched: the index of the bucket.
  std::int64_t at = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int rank = 0;
  std::int64_t p = 0;  // First element of P in Plan::sent, and of Q in Plan::q.
  std::int64_t q = 0;
  bool has_q = false;       // Plan::q holds the Q of an earlier step.
  bool has_refill = false;  // Plan::refill is written.
};

/// An array of the compute type that is summed over the ranks in the bucket's dtype.
struct Summed {
  Tensor array;
  Tensor narrow;  // The message if the bucket's dtype has 2 bytes; otherwise empty.
  int ranks = 1;

  bool is_narrow() const noexcept { return narrow.data() != nullptr; }
  TensorView message() { return is_narrow() ? narrow : array; }
  /// The sum, or the mean of a narrow message: the sum may overflow although the mean is finite.
  ReduceOp op() const noexcept {
    return is_narrow() ? ReduceOp::premul(1.0 / ranks) : ReduceOp::sum;
  }
};

/// The compression of a bucket by PowerSGD. The arrays have the compute type.
struct Plan {
  std::optional<ProcessGroup> group{};  // Keeps the memory of the arrays alive.
  int generation = 0;                   // Of the bucket.
  bool is_whole = true;  // False while m and q are those of a step that has not ended.
  const PowerSgdOptions* options = nullptr;
  DeviceArithmetic* device = nullptr;  // Null for arrays on the host.
  Stream stream{};                     // Of the device.
  Memory* memory = nullptr;
  Bucket::Slices slices;
  std::vector<Segment> compressed;  // Gradients, with their places in m.
  std::vector<Segment> rest;  // Uncompressed gradients, with their places in sent, after all P.
  std::vector<Matrix> matrices;
  std::int64_t sent_numel = 0;
  Tensor m;     // The matrices; between steps their errors.
  Summed sent;  // P of all matrices, then the uncompressed gradients.
  Summed q;
  Tensor row;     // On a device, of the elements of the largest matrix.
  Tensor refill;  // On a device, in place of columns of Q of which nothing remains.
};

/// Returns `count` elements of a flat array, from element `at` on.
inline TensorView part(const TensorView& array, std::int64_t at, std::int64_t count) {
  auto* first = static_cast<std::byte*>(array.data);
  return {first + static_cast<std::size_t>(at) * size_of(array.dtype), array.dtype,
          Shape::vector(count), array.device};
}

/// Writes Q [rank, columns] before its first step, by the caller's function or as random numbers,
/// to host memory.
template <typename T>
void fill_q(const PowerSgdOptions& options, const Matrix& matrix, std::int64_t step, T* q);
/// Writes the random columns that replace others.
template <typename T>
void fill_random_q(const PowerSgdOptions& options, const Matrix& matrix, T* q);

// The same three functions for a plan on a device.
void compress_on_device(Plan& plan, const Bucket& bucket, std::int64_t step);
void project_on_device(Plan& plan);
void decompress_on_device(Plan& plan, const Bucket& bucket);

/// Runs before the first sum over ranks: fills m, sent and q from the bucket's gradients.
void compress(Plan& plan, const Bucket& bucket, std::int64_t step);
/// Runs between the sums: computes this rank's q from the summed P in `sent`.
void project(Plan& plan);
/// Runs after the second sum: writes the result to the bucket and the error to m.
void decompress(Plan& plan, const Bucket& bucket);

}  // namespace tutti::ddp
