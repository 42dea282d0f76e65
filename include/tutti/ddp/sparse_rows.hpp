#pragma once

#include <tutti/gather.hpp>
#include <tutti/process_group.hpp>
#include <tutti/tensor.hpp>

namespace tutti {
namespace [[gnu::visibility("default")]] ddp {

/// The rows of an array [N, ...] that are not 0: the gradient of an embedding, for example.
struct SparseRows {
  Tensor indices;  ///< [m]: ascending, each once.
  Tensor values;   ///< [m, ...]: row i belongs to indices[i].
};

/// Options of all_reduce_rows(). Equal on all ranks.
struct SparseRowsOptions {
  double divisor = 1;         ///< Divisor of the sum over ranks. 0: W, the mean; 1: the sum.
  std::int64_t num_rows = 0;  ///< N, to check indices against. 0: any index from 0 on.
};

/// Adds rows of equal index over the ranks. Gathers the rows of all ranks and adds them in rank
/// order, within a rank in the given order, in the precision of the dtype (f16 and bf16 in float,
/// rounded once). The result has the same bits on every rank and backend.
///
/// Leave parameters with sparse gradients out of the reducer's list. While the ranks together have
/// fewer than about 2 N rows, this function sends less than an all_reduce, which sends 2 N rows.
///
/// @param indices  [n_r], i32 or i64; in any order; may repeat or be empty.
/// @param values   [n_r, ...], floats or complex numbers.
/// @param rows     n_r of every rank, as in all_gather_rows().
/// On the wire: as all_gather_rows() of two arrays. Memory: the rows of all ranks. On a device the
/// host adds and waits, and holds a second copy of the rows.
/// @throws Error as all_gather_rows(); invalid_argument on every rank, whose text names the first
///         wrong index and its rank. The group stays usable.
SparseRows all_reduce_rows(ProcessGroup& group, const ConstTensorView& indices,
                           const ConstTensorView& values, const SparseRowsOptions& sparse = {},
                           const RowLayout& rows = {}, const CallOptions& options = {});

}  // namespace ddp
}  // namespace tutti
