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

// Gathers of arrays whose sizes differ between ranks. Collective: all ranks of the group call the
// same function. What the ranks disagree about (dtype, number of dimensions, row shape, the
// function itself) is an Error mismatch on every rank, naming both sides; the group stays usable. A
// call that one rank cannot make is an error on all; but where the rows were inlined with their
// sizes, a rank without memory for its result is alone with that. docs/gathering.md.

namespace [[gnu::visibility("default")]] tutti {

struct GatherOptions {
  /// What exchange_rows() would say, when the caller knows it; null costs that exchange. With it
  /// only ProcessGroup's own comparisons are made (all of them in checked mode).
  const RowLayout* layout = nullptr;
  Memory* memory = nullptr;  ///< Of results; null: the group's. Outlives them.
  CallOptions call{};
};

/// The options of functions that have the layout among their arguments, or need none.
struct ResultOptions {
  Memory* memory = nullptr;  ///< Of results; null: the group's. Outlives them.
  CallOptions call{};
};

struct GatheredRows {
  Tensor data;  ///< [sum n_r, ...], rank order. No trace of padding is left.
  RowLayout layout;
};

/// Concatenates every rank's rows (MPI_Allgatherv with counts that ranks need not know).
///
/// @param local  [n_r, ...]: n_r may differ between ranks and may be 0; the other dimensions and
///               the dtype must not. A 0-dimensional array is one row.
/// On the wire: without a layout one message of 136 bytes (72 more per further array) from each
/// rank to each other one, with the rows in it when they are 64 KiB or less everywhere; otherwise,
/// and with a layout, about max over r of (total - own rows of r) per rank.
/// @throws Error invalid_argument when the layout contradicts local.
GatheredRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                             const GatherOptions& options = {});

struct GatheredArrays {
  std::vector<Tensor> data;  ///< [sum n_r, ...] of each array.
  RowLayout layout;
};
/// Several arrays with the same rows: one exchange for all, and one message while they are small.
GatheredArrays all_gather_rows(ProcessGroup& group, std::span<const ConstTensorView> locals,
                               const GatherOptions& options = {});

/// The same into `out` [sum n_r, ...]. `local` may be its own place in out.
void all_gather_rows(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
                     const RowLayout& layout, const CallOptions& options = {});

struct PaddedRows {
  Tensor data;  ///< [W, max n, ...]: row j of rank r at [r, j]; `fill` behind its last one.
  RowLayout layout;
};
/// Each rank pads its rows to as many as the largest has. `fill` must have a value in the dtype:
/// 0.5 has none in an integer.
/// On the wire: as all_gather_rows while the rows are 64 KiB or less everywhere; otherwise, and
/// with a layout, (W - 1) max n rows per rank.
PaddedRows all_gather_padded(ProcessGroup& group, const ConstTensorView& local, double fill,
                             const GatherOptions& options = {});

/// As all_gather_rows, with data on `root` only ([0] elsewhere) and the layout everywhere.
GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const GatherOptions& options = {});

/// The reverse: rank r gets rows [offset(r), offset(r + 1)) of root's `whole`.
///
/// @param whole   [sum n_r, ...] on root; not used elsewhere, where {} will do.
/// @param layout  root's; elsewhere null. Root sends it, with dtype and row shape: one broadcast.
/// @return [n_rank, ...].
Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const ResultOptions& options = {});

/// The transpose of all_gather_rows: this rank's rows [n_rank, ...] of op over ranks of
/// `whole` [sum n_r, ...]. The layout is the same everywhere. On the wire: total - own rows.
Tensor reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                           const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                           const ResultOptions& options = {});

/// One array from each rank, in group order; every dimension may differ, their number and the
/// dtype may not. 0-dimensional and empty arrays are allowed.
std::vector<Tensor> gather_all_tensors(ProcessGroup& group, const ConstTensorView& local,
                                       const ResultOptions& options = {});

/// One string of bytes from each rank, of any length (MPI_Allgatherv of bytes).
std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view local,
                                          const CallOptions& options = {});

/// root's string of bytes, of any length, on every rank; on root `bytes` is read only. After an
/// error `bytes` is as it was. On the wire: a broadcast of 1 KiB with the length, in which 1016
/// bytes or fewer are inlined; otherwise one of the bytes behind it.
void broadcast_bytes(ProcessGroup& group, std::string& bytes, int root,
                     const CallOptions& options = {});

/// Async forms: the rows travel after the function has returned. Without a layout the function
/// waits until the sizes are exchanged, behind the group's earlier calls; small rows are inlined.
/// `local` and `whole` must live until Pending::get(). Refusals and mismatches are thrown here,
/// later errors by get(). Several may be pending at a time.
Pending<GatheredRows> all_gather_rows_async(ProcessGroup& group, const ConstTensorView& local,
                                            const GatherOptions& options = {});
Pending<PaddedRows> all_gather_padded_async(ProcessGroup& group, const ConstTensorView& local,
                                            double fill, const GatherOptions& options = {});
Pending<GatheredRows> gather_rows_async(ProcessGroup& group, const ConstTensorView& local, int root,
                                        const GatherOptions& options = {});
Pending<Tensor> reduce_scatter_rows_async(ProcessGroup& group, const ConstTensorView& whole,
                                          const RowLayout& layout, ReduceOp op = ReduceOp::sum,
                                          const ResultOptions& options = {});

}  // namespace tutti
