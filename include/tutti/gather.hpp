#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/pending.hpp>
#include <tutti/process_group.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/tensor.hpp>

// Gathers of arrays whose sizes differ between ranks. Collective: all ranks call the same function.
// Functions that exchange sizes compare the function, dtype, number of dimensions and row shape in
// that exchange: if they differ, every rank gets Error mismatch with both sides and the group stays
// usable. With `rows`, ProcessGroup's comparisons apply. A call that is invalid on one rank is an
// error on all. Exception: if small rows travel with the sizes and a rank cannot allocate its
// result, only that rank gets an error. docs/gathering.md.
//
// `rows`: the result of exchange_rows(), equal on all ranks. Where it may be left out ({}), the
// call exchanges the row counts; with `rows`, ranks compare only what ProcessGroup compares.

namespace [[gnu::visibility("default")]] tutti {

/// The rows of several ranks.
struct GatheredRows {
  Tensor data;     ///< [sum n_r, ...] in rank order, without padding.
  RowLayout rows;  ///< The number of rows from each rank.
};

/// Concatenates every rank's rows (MPI_Allgatherv with counts that ranks need not know).
///
/// @param local  [n_r, ...]: n_r may differ between ranks and may be 0; the other dimensions and
///               the dtype must not. A 0-dimensional array is one row.
/// On the wire, without `rows`: from each rank to each peer 27 bytes, the function's name, and
/// 5 + 8 ndim bytes per array on host memory, or 2880 bytes on a device. Rows are in that message
/// if they are 64 KiB or less on every rank. Otherwise, and with `rows`: about max over r of
/// (total - n_r) rows per rank.
/// @throws Error invalid_argument when `rows` contradict local.
GatheredRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                             const RowLayout& rows = {}, const CallOptions& options = {});

/// The rows of several ranks in several arrays.
struct GatheredArrays {
  std::vector<Tensor> data;  ///< [sum n_r, ...] of each array.
  RowLayout rows;            ///< The number of rows from each rank, equal in all arrays.
};
/// Gathers several arrays with equal row counts: one exchange of sizes for all, or one message if
/// the arrays are small.
GatheredArrays all_gather_rows(ProcessGroup& group, std::span<const ConstTensorView> locals,
                               const RowLayout& rows = {}, const CallOptions& options = {});

/// Gathers into `out` [sum n_r, ...]. `local` may be this rank's rows of out.
void all_gather_rows(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
                     const RowLayout& rows, const CallOptions& options = {});

/// The rows of all ranks, padded to the largest number of them.
struct PaddedRows {
  Tensor data;  ///< [W, max n, ...]: row j of rank r at [r, j]; `fill` after each rank's last row.
  RowLayout rows;  ///< The number of rows of each rank, without padding.
};
/// Pads each rank's rows to the largest number of rows. `fill` must be a value of the dtype: not
/// 0.5 for integers. On the wire: as all_gather_rows if the rows are 64 KiB or less on every rank;
/// otherwise, and with `rows`, (W - 1) max n rows per rank.
PaddedRows all_gather_padded(ProcessGroup& group, const ConstTensorView& local, double fill,
                             const RowLayout& rows = {}, const CallOptions& options = {});

/// all_gather_rows() with data on `root` only ([0] on other ranks) and the row counts on every
/// rank. One message carries rows of 4 KiB or less.
GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const RowLayout& rows = {}, const CallOptions& options = {});

/// Reverse of gather_rows(): rank r gets rows [offset(r), offset(r + 1)) of root's `whole`.
///
/// @param whole   [sum n_r, ...] on root; ignored on other ranks, which may pass {}.
/// @param rows    read on root only; other ranks may pass {}. Root broadcasts it with the dtype and
///                row shape; then a scatter follows.
/// @return [n_rank, ...].
Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                    int root, const CallOptions& options = {});

/// Reduces `whole` [sum n_r, ...] over ranks with `op` and returns this rank's rows [n_rank, ...]:
/// the transpose of all_gather_rows. `rows` are the same everywhere. On the wire: total - own
/// rows.
Tensor reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                           ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

/// Sends block j of `in` [sum send_rows, ...] to rank j; no rank knows beforehand how many rows it
/// receives, as in a mixture of experts. A 0-dimensional array is one row.
///
/// @param send_rows  the rows of each block; if not given, 1 / W of the rows of `in` each. If both
///                   sides know the counts, ProcessGroup::all_to_all saves their exchange.
/// @return the rows for this rank, in rank order, and their numbers. Passed as send_rows of another
///         call, `rows` sends the rows back.
/// On the wire: from each rank to each peer about 100 bytes and 8 W bytes of counts (on a device
/// 2880 bytes, then the counts); then each row once.
/// @throws Error invalid_argument when this rank's counts are negative or not the rows of its `in`;
///         mismatch then on the other ranks.
GatheredRows all_to_all_rows(ProcessGroup& group, const ConstTensorView& in, Rows send_rows = {},
                             const CallOptions& options = {});

/// One array from each rank, in rank order. The dimensions may differ between ranks; their number
/// and the dtype may not. 0-dimensional and empty arrays are allowed.
std::vector<Tensor> gather_all_tensors(ProcessGroup& group, const ConstTensorView& local,
                                       const CallOptions& options = {});
/// A list of arrays from each rank, in rank order. The lengths of the lists, which may be 0, and
/// the dimensions and dtype of every array may differ.
///
/// On the wire: one exchange in which each rank sends each peer about 80 bytes, and 5 + 8 ndim
/// bytes for each array. In host memory, a rank whose list takes 64 KiB or less includes the
/// elements; those of the other ranks, and descriptions above 64 KiB, follow in one gather of bytes
/// each. On a device 2880 bytes, then the descriptions.
std::vector<std::vector<Tensor>> gather_all_tensors(ProcessGroup& group,
                                                    std::span<const ConstTensorView> locals,
                                                    const CallOptions& options = {});

/// One string of bytes from each rank, of any length (MPI_Allgatherv of bytes).
std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view local,
                                          const CallOptions& options = {});

/// Sends root's string, of any length, to every rank; root's string is not modified. After an error
/// `bytes` is unchanged. On the wire: one broadcast of 1 KiB with the length and up to 1016 bytes;
/// longer strings take a second broadcast.
void broadcast_bytes(ProcessGroup& group, std::string& bytes, int root,
                     const CallOptions& options = {});

/// Async forms: the function may return before the rows have arrived. Without `rows` it waits for
/// the group's earlier calls and the exchange of sizes, in which gathers inline small rows.
/// `local`, `in` and `whole` must live until get() or the destructor has returned. Refusals and
/// mismatches are thrown here, later errors by get(). Several may be pending at a time.
Pending<GatheredRows> all_gather_rows_async(ProcessGroup& group, const ConstTensorView& local,
                                            const RowLayout& rows = {},
                                            const CallOptions& options = {});
/// The async form of all_gather_padded(); see all_gather_rows_async().
Pending<PaddedRows> all_gather_padded_async(ProcessGroup& group, const ConstTensorView& local,
                                            double fill, const RowLayout& rows = {},
                                            const CallOptions& options = {});
/// The async form of gather_rows(); see all_gather_rows_async().
Pending<GatheredRows> gather_rows_async(ProcessGroup& group, const ConstTensorView& local, int root,
                                        const RowLayout& rows = {},
                                        const CallOptions& options = {});
/// The async form of all_to_all_rows(); see all_gather_rows_async().
Pending<GatheredRows> all_to_all_rows_async(ProcessGroup& group, const ConstTensorView& in,
                                            Rows send_rows = {}, const CallOptions& options = {});
/// The async form of reduce_scatter_rows(); see all_gather_rows_async().
Pending<Tensor> reduce_scatter_rows_async(ProcessGroup& group, const ConstTensorView& whole,
                                          const RowLayout& rows, ReduceOp op = ReduceOp::sum,
                                          const CallOptions& options = {});

}  // namespace tutti
