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
// usable. With a layout, ProcessGroup's comparisons apply. A call that is invalid on one rank is an
// error on all. Exception: if small rows travel with the sizes and a rank cannot allocate its
// result, only that rank gets an error. docs/gathering.md.

namespace [[gnu::visibility("default")]] tutti {

/// Options of gathers that use a given layout or exchange the row counts. A value type.
struct GatherOptions {
  /// The result of exchange_rows(); null: the call exchanges the row counts. With a layout, ranks
  /// compare only what ProcessGroup compares. Borrowed until the function returns.
  const RowLayout* layout = nullptr;
  Memory* memory = nullptr;  ///< Memory of results; null: the group's. Outlives the results.
  CallOptions call{};
};

/// Options of functions that take the layout as an argument, or need none.
struct ResultOptions {
  Memory* memory = nullptr;  ///< Memory of results; null: the group's. Outlives the results.
  CallOptions call{};
};

struct GatheredRows {
  Tensor data;  ///< [sum n_r, ...] in rank order, without padding.
  RowLayout layout;
};

/// Concatenates every rank's rows (MPI_Allgatherv with counts that ranks need not know).
///
/// @param local  [n_r, ...]: n_r may differ between ranks and may be 0; the other dimensions and
///               the dtype must not. A 0-dimensional array is one row.
/// On the wire, without a layout: from each rank to each peer 27 bytes, the function's name, and
/// 5 + 8 ndim bytes per array on host memory, or 2880 bytes on a device. Rows are in that message
/// if they are 64 KiB or less on every rank. Otherwise, and with a layout: about max over r of
/// (total - n_r) rows per rank.
/// @throws Error invalid_argument when the layout contradicts local.
GatheredRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                             const GatherOptions& options = {});

struct GatheredArrays {
  std::vector<Tensor> data;  ///< [sum n_r, ...] of each array.
  RowLayout layout;
};
/// Gathers several arrays with equal row counts: one exchange of sizes for all, or one message if
/// the arrays are small.
GatheredArrays all_gather_rows(ProcessGroup& group, std::span<const ConstTensorView> locals,
                               const GatherOptions& options = {});

/// Gathers into `out` [sum n_r, ...]. `local` may be this rank's rows of out.
void all_gather_rows(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
                     const RowLayout& layout, const CallOptions& options = {});

struct PaddedRows {
  Tensor data;  ///< [W, max n, ...]: row j of rank r at [r, j]; `fill` after each rank's last row.
  RowLayout layout;
};
/// Pads each rank's rows to the largest number of rows. `fill` must be a value of the dtype: not
/// 0.5 for integers. On the wire: as all_gather_rows if the rows are 64 KiB or less on every rank;
/// otherwise, and with a layout, (W - 1) max n rows per rank.
PaddedRows all_gather_padded(ProcessGroup& group, const ConstTensorView& local, double fill,
                             const GatherOptions& options = {});

/// all_gather_rows() with data on `root` only ([0] on other ranks) and the layout on every rank.
GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const GatherOptions& options = {});

/// Reverse of gather_rows(): rank r gets rows [offset(r), offset(r + 1)) of root's `whole`.
///
/// @param whole   [sum n_r, ...] on root; ignored on other ranks, which may pass {}.
/// @param layout  read on root only; other ranks may pass {}. Root broadcasts it with the dtype and
///                row shape; then a scatter follows.
/// @return [n_rank, ...].
Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& layout,
                    int root, const ResultOptions& options = {});

/// Reduces `whole` [sum n_r, ...] over ranks with `op` and returns this rank's rows [n_rank, ...]:
/// the transpose of all_gather_rows. The layout is the same everywhere. On the wire: total - own
/// rows.
Tensor reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                           const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                           const ResultOptions& options = {});

struct ReceivedRows {
  Tensor data;                     ///< [sum rows, ...] in rank order.
  std::vector<std::int64_t> rows;  ///< The number of rows from each rank.
};
/// Sends block j of `in` [sum send_rows, ...] to rank j; no rank knows beforehand how many rows it
/// receives, as in a mixture of experts. A 0-dimensional array is one row.
///
/// @param send_rows  a list with an entry per rank, or one number for all; without it each block
/// has
///                   1 / W of the rows. With counts known on both sides: ProcessGroup::all_to_all.
/// On the wire: from each rank to each peer 40 bytes, the function's name, the words for dtype and
/// row shape, and 8 W bytes of counts (2880 bytes on a device if that is more); then each row once.
/// @throws Error invalid_argument on every rank when the counts of one are negative or not the rows
///         of its `in`.
ReceivedRows all_to_all_rows(ProcessGroup& group, const ConstTensorView& in, Rows send_rows = {},
                             const ResultOptions& options = {});

/// One array from each rank, in rank order. The dimensions may differ between ranks; their number
/// and the dtype may not. 0-dimensional and empty arrays are allowed.
std::vector<Tensor> gather_all_tensors(ProcessGroup& group, const ConstTensorView& local,
                                       const ResultOptions& options = {});

/// One string of bytes from each rank, of any length (MPI_Allgatherv of bytes).
std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view local,
                                          const CallOptions& options = {});

/// Sends root's string, of any length, to every rank; root's string is not modified. After an error
/// `bytes` is unchanged. On the wire: one broadcast of 1 KiB with the length and up to 1016 bytes;
/// longer strings take a second broadcast.
void broadcast_bytes(ProcessGroup& group, std::string& bytes, int root,
                     const CallOptions& options = {});

/// Async forms: the function may return before the rows have arrived. Without a layout it waits for
/// the group's earlier calls and the exchange of sizes, in which small rows are inlined. `local`,
/// `in` and `whole` must live until get() or the destructor has returned. Refusals and mismatches
/// are thrown here, later errors by get(). Several may be pending at a time.
Pending<GatheredRows> all_gather_rows_async(ProcessGroup& group, const ConstTensorView& local,
                                            const GatherOptions& options = {});
Pending<PaddedRows> all_gather_padded_async(ProcessGroup& group, const ConstTensorView& local,
                                            double fill, const GatherOptions& options = {});
Pending<GatheredRows> gather_rows_async(ProcessGroup& group, const ConstTensorView& local, int root,
                                        const GatherOptions& options = {});
Pending<ReceivedRows> all_to_all_rows_async(ProcessGroup& group, const ConstTensorView& in,
                                            Rows send_rows = {}, const ResultOptions& options = {});
Pending<Tensor> reduce_scatter_rows_async(ProcessGroup& group, const ConstTensorView& whole,
                                          const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                          const ResultOptions& options = {});

}  // namespace tutti
