#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/ddp/power_sgd.hpp>

#include "ddp/segments.hpp"

namespace tutti::ddp {

/// A matrix and the places of its factors.
struct Matrix {
  std::size_t id = 0;  // Of the parameter; batched: the index of the bucket.
  std::int64_t at = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int rank = 0;
  std::int64_t p = 0;  // First elements of its factors.
  std::int64_t q = 0;
  bool has_q = false;  // Of an earlier step.
};

/// How a bucket is compressed by PowerSGD, and its arrays, of the compute type.
struct Plan {
  const PowerSgdOptions* options = nullptr;
  Bucket::Slices slices;
  std::vector<Segment> compressed;  // Places in m.
  std::vector<Segment> rest;        // Places in sent, behind the P.
  std::vector<Matrix> matrices;
  std::int64_t sent_numel = 0;
  Tensor m;     // Between steps: the error.
  Tensor sent;  // P of all matrices, and what is not compressed.
  Tensor q;
  Tensor row;
};

/// Before the first sum over ranks: m and sent, of the bucket's gradients.
void compress(Plan& plan, const Bucket& bucket, std::int64_t step);
/// Between the sums: q of this rank, with P of all ranks in sent.
void project(Plan& plan);
/// After the second sum: the result in the bucket, the error in m.
void decompress(Plan& plan, const Bucket& bucket);

}  // namespace tutti::ddp
