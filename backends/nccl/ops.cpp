#include "ops.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/reduce_arithmetic.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

/// Arrays that are only moved are sent as bytes.
constexpr auto as_bytes = ncclUint8;

/// The type that NCCL reduces for `dtype`: f32 for complex64, f64 for complex128, because NCCL sums
/// a complex array as twice as many floats; otherwise `dtype`.
constexpr DType component_of(DType dtype) noexcept {
  if (dtype == DType::complex64) return DType::f32;
  if (dtype == DType::complex128) return DType::f64;
  return dtype;
}

ncclDataType_t type_of(DType dtype) noexcept {
  // NCCL does not have the other types; the library's kernels reduce them.
  constexpr std::pair<DType, ncclDataType_t> types[] = {
      {DType::i8, ncclInt8},       {DType::i32, ncclInt32},   {DType::u32, ncclUint32},
      {DType::i64, ncclInt64},     {DType::u64, ncclUint64},  {DType::f16, ncclFloat16},
      {DType::bf16, ncclBfloat16}, {DType::f32, ncclFloat32}, {DType::f64, ncclFloat64}};
  for (const auto& [ours, theirs] : types)
    if (ours == component_of(dtype)) return theirs;
  return ncclUint8;
}

ncclRedOp_t builtin(ReduceOp::Kind kind) noexcept {
  switch (kind) {
    case ReduceOp::Kind::avg:
      return ncclAvg;
    case ReduceOp::Kind::prod:
      return ncclProd;
    case ReduceOp::Kind::min:
      return ncclMin;
    case ReduceOp::Kind::max:
      return ncclMax;
    default:
      return ncclSum;
  }
}

/// The bytes of one row of an operation; 0 if the operation is not divided into rows.
std::size_t row_bytes_of(const Op& op) noexcept {
  switch (op.kind) {
    case Operation::all_gather:
    case Operation::gather:
    case Operation::all_to_all:
    case Operation::reduce_scatter:
      return op.in.row_bytes();
    case Operation::scatter:
      return op.out.row_bytes();
    default:
      return 0;
  }
}

std::size_t count_of(std::size_t bytes, DType dtype) noexcept {
  return bytes / size_of(component_of(dtype));
}

}  // namespace

GatherAlgorithm choose_gather(const Rows& rows, int size, std::size_t row_bytes) noexcept {
  if (!rows.listed()) return GatherAlgorithm::equal;
  std::size_t total = 0;
  std::size_t most = 0;
  std::size_t least = SIZE_MAX;
  int with_rows = 0;
  for (const auto n : rows.list()) {
    const auto bytes = static_cast<std::size_t>(n) * row_bytes;
    total += bytes;
    most = std::max(most, bytes);
    least = std::min(least, bytes);
    with_rows += bytes != 0 ? 1 : 0;
  }
  if (most == least) return GatherAlgorithm::equal;
  if (with_rows == 1) return GatherAlgorithm::broadcasts;
  const auto ranks = static_cast<std::size_t>(size);
  const auto slot = aligned(most);
  const bool small = total <= 64U << 10 || slot <= (1U << 20) / ranks;
  const bool even = most <= total / ranks / 4 * 5;
  return small || even ? GatherAlgorithm::padded : GatherAlgorithm::broadcasts;
}

bool can_reduce(DType dtype, ReduceOp::Kind kind) noexcept {
  if (is_complex(dtype))
    return kind == ReduceOp::Kind::sum || kind == ReduceOp::Kind::avg ||
           kind == ReduceOp::Kind::premul_sum;
  const bool number = (is_integer(dtype) && dtype != DType::i16 && dtype != DType::u16) ||
                      dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 ||
                      dtype == DType::f64;
  if (!number) return false;
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::prod:
      return true;
    case ReduceOp::Kind::avg:  // NCCL's average of integers differs between versions.
    case ReduceOp::Kind::premul_sum:
      return is_float(dtype);
    case ReduceOp::Kind::min:  // For floats NCCL prefers a number over NaN.
    case ReduceOp::Kind::max:
      return is_integer(dtype);
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
    case ReduceOp::Kind::custom:  // A function of the host.
      return false;
  }
  return false;
}

bool is_left_fold(const Op& op, int size) noexcept {
  const bool reduces = op.kind == Operation::all_reduce || op.kind == Operation::reduce ||
                       op.kind == Operation::reduce_scatter;
  if (!reduces || is_integer(op.in.dtype)) return true;
  // In NCCL one rank rounds only the factor of premul_sum, and two ranks round a sum or product
  // once, in either order, as the left fold does. Otherwise the order is NCCL's, and NCCL rounds
  // every intermediate result.
  return (size == 1 && op.reduce.kind != ReduceOp::Kind::premul_sum) ||
         (size == 2 &&
          (op.reduce.kind == ReduceOp::Kind::sum || op.reduce.kind == ReduceOp::Kind::prod));
}

bool needs_kernels(const Op& op, int size, bool order_fixed) noexcept {
  switch (op.kind) {
    case Operation::scan:
    case Operation::exclusive_scan:
      return true;
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return !can_reduce(op.in.dtype, op.reduce.kind) || (order_fixed && !is_left_fold(op, size));
    default:
      return false;
  }
}

bool needs_scratch(const Op& op, int size, bool order_fixed) noexcept {
  return op.kind == Operation::all_gather_bounded || needs_kernels(op, size, order_fixed) ||
         (op.kind == Operation::all_gather &&
          choose_gather(op.rows, size, row_bytes_of(op)) == GatherAlgorithm::padded);
}

bool needs_nccl(const Op& op, int size, bool order_fixed) noexcept {
  return size > 1 ||
         (op.reduce.kind == ReduceOp::Kind::premul_sum && !needs_kernels(op, size, order_fixed));
}

Lowering::Lowering(const OpContext& context, const Op& op, bool order_fixed)
    : context_(context),
      op_(op),
      needs_nccl_(nccl::needs_nccl(op, context.size, order_fixed)),
      row_bytes_(row_bytes_of(op)) {
  if (needs_kernels(op, context.size, order_fixed))
    folding_.emplace(context, op);
  else if (op.kind == Operation::all_gather)
    algorithm_ = choose_gather(op.rows, context.size, row_bytes_);
  else if (op.kind == Operation::reduce_scatter && op.rows.listed())
    algorithm_ = std::ranges::all_of(op.rows.list(), [&](auto n) { return n == op.rows[0]; })
                     ? GatherAlgorithm::equal
                     : GatherAlgorithm::broadcasts;
}

const std::byte* Lowering::in(std::int64_t row) const noexcept {
  const auto* data = static_cast<const std::byte*>(op_.in.data);
  return row == 0 ? data : data + bytes_of(row);
}

std::byte* Lowering::out(std::int64_t row) const noexcept {
  auto* data = static_cast<std::byte*>(op_.out.data);
  return row == 0 ? data : data + bytes_of(row);
}

std::size_t Lowering::slot() const noexcept {
  return aligned(bytes_of(std::ranges::max(op_.rows.list())));
}

/// The rows that this rank sends to `rank` in a gather, scatter or all_to_all.
std::int64_t Lowering::rows_to(int rank) const noexcept {
  if (op_.kind == Operation::gather) return rank == op_.root ? op_.rows[context_.rank] : 0;
  if (op_.kind == Operation::scatter) return context_.rank == op_.root ? op_.rows[rank] : 0;
  return op_.send_rows[rank];
}

/// The rows that this rank receives from `rank` in a gather, scatter or all_to_all.
std::int64_t Lowering::rows_from(int rank) const noexcept {
  if (op_.kind == Operation::gather) return context_.rank == op_.root ? op_.rows[rank] : 0;
  if (op_.kind == Operation::scatter) return rank == op_.root ? op_.rows[context_.rank] : 0;
  return op_.rows[rank];
}

/// Calls f(rank, in, bytes to send, out, bytes to receive) for each rank.
template <typename F>
void Lowering::for_each_rank(const F& f) const {
  std::int64_t to = 0;
  std::int64_t from = 0;
  for (int r = 0; r < context_.size; ++r) {
    f(r, in(to), bytes_of(rows_to(r)), out(from), bytes_of(rows_from(r)));
    to += rows_to(r);
    from += rows_from(r);
  }
}

void Lowering::make_op(ncclComm_t comm) {
  reduce_ = builtin(op_.reduce.kind);
  if (op_.reduce.kind != ReduceOp::Kind::premul_sum) return;
  std::byte scale[sizeof(double)] = {};
  internal::visit_type(component_of(op_.in.dtype), [&]<typename T>(T) {
    if constexpr (internal::foldable<T, ReduceOp::Kind::premul_sum> &&
                  !internal::ComplexStorage<T>) {
      const T value = internal::narrow<T>(static_cast<internal::Acc<T>>(op_.reduce.scale));
      std::memcpy(scale, &value, sizeof value);
    }
  });
  check(context_.gpu.nccl(),
        context_.gpu.nccl().red_op_create_pre_mul_sum(&reduce_, scale, type_of(op_.in.dtype),
                                                      ncclScalarHostImmediate, comm),
        "ncclRedOpCreatePreMulSum");
  made_op_ = true;
}

void Lowering::before(int group, ncclComm_t comm) {
  if (folding_ && group < groups()) return folding_->before(group);
  if (group != 0) return;
  switch (op_.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return make_op(comm);
    case Operation::all_gather:
      if (algorithm_ != GatherAlgorithm::padded) return;
      scratch_ = Scratch(context_, slot() * static_cast<std::size_t>(context_.size));
      return context_.copy(scratch_.data() + slot() * static_cast<std::size_t>(context_.rank),
                           in(0), bytes_of(op_.rows[context_.rank]));
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return for_each_rank([&](int r, auto* in, std::size_t bytes, auto* out, std::size_t) {
        if (r == context_.rank) context_.copy(out, in, bytes);
      });
    default:
      return;
  }
}

void Lowering::gather(ncclComm_t comm) {
  const auto& nccl = context_.gpu.nccl();
  const auto bytes = bytes_of(op_.rows[context_.rank]);
  switch (algorithm_) {
    case GatherAlgorithm::equal:
      if (bytes != 0)
        check(nccl,
              nccl.all_gather(op_.in.data, op_.out.data, bytes, as_bytes, comm, context_.stream),
              "ncclAllGather");
      return;
    case GatherAlgorithm::padded:
      return check(
          nccl,
          nccl.all_gather(scratch_.data() + slot() * static_cast<std::size_t>(context_.rank),
                          scratch_.data(), slot(), as_bytes, comm, context_.stream),
          "ncclAllGather");
    case GatherAlgorithm::broadcasts:
      std::int64_t row = 0;
      for (int r = 0; r < context_.size; ++r) {
        const auto block = bytes_of(op_.rows[r]);
        const void* from = r == context_.rank ? op_.in.data : out(row);
        if (block != 0)
          check(nccl, nccl.broadcast(from, out(row), block, as_bytes, r, comm, context_.stream),
                "ncclBroadcast");
        row += op_.rows[r];
      }
  }
}

void Lowering::reduce_scatter(ncclComm_t comm) {
  const auto& nccl = context_.gpu.nccl();
  const auto type = type_of(op_.in.dtype);
  if (algorithm_ == GatherAlgorithm::equal) {
    const auto count = count_of(bytes_of(op_.rows[context_.rank]), op_.in.dtype);
    if (count != 0)
      check(nccl,
            nccl.reduce_scatter(op_.in.data, op_.out.data, count, type, reduce_, comm,
                                context_.stream),
            "ncclReduceScatter");
    return;
  }
  std::int64_t row = 0;
  for (int r = 0; r < context_.size; ++r) {
    const auto count = count_of(bytes_of(op_.rows[r]), op_.in.dtype);
    if (count != 0)
      check(nccl,
            nccl.reduce(in(row), r == context_.rank ? op_.out.data : nullptr, count, type, reduce_,
                        r, comm, context_.stream),
            "ncclReduce");
    row += op_.rows[r];
  }
}

/// The result of one rank, without NCCL, which copies too, but leaks memory for each group of such
/// calls (ncclGroupJob in its group.cc, 2.28.9).
void Lowering::copy_alone() const {
  switch (op_.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
    case Operation::broadcast:
    case Operation::all_gather:
      return context_.copy(op_.out.data, op_.in.data, op_.in.bytes());
    default:
      return;
  }
}

void Lowering::inside(int group, ncclComm_t comm) {
  if (folding_ && group < groups()) return folding_->inside(group, comm);
  if (group != 0) return;
  if (!needs_nccl()) return copy_alone();
  const auto& nccl = context_.gpu.nccl();
  const auto stream = context_.stream;
  const auto count = count_of(op_.in.bytes(), op_.in.dtype);
  switch (op_.kind) {
    case Operation::all_reduce:
      if (count == 0) return;
      return check(nccl,
                   nccl.all_reduce(op_.in.data, op_.out.data, count, type_of(op_.in.dtype), reduce_,
                                   comm, stream),
                   "ncclAllReduce");
    case Operation::reduce:
      if (count == 0) return;
      return check(nccl,
                   nccl.reduce(op_.in.data, op_.out.data, count, type_of(op_.in.dtype), reduce_,
                               op_.root, comm, stream),
                   "ncclReduce");
    case Operation::broadcast:
      if (count == 0) return;
      return check(nccl,
                   nccl.broadcast(op_.in.data, op_.out.data, op_.in.bytes(), as_bytes, op_.root,
                                  comm, stream),
                   "ncclBroadcast");
    case Operation::barrier:
      return check(
          nccl,
          nccl.all_reduce(context_.token, context_.token, 1, ncclFloat32, ncclSum, comm, stream),
          "ncclAllReduce");
    case Operation::all_gather:
      return gather(comm);
    case Operation::reduce_scatter:
      return reduce_scatter(comm);
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return for_each_rank([&](int r, auto* in, std::size_t sent, auto* out, std::size_t received) {
        context_.send(in, sent, r, comm);
        context_.recv(out, received, r, comm);
      });
    default:
      tutti::fail(Errc::unsupported, "the backend nccl does not implement this operation");
  }
}

void Lowering::after(ncclComm_t comm) {
  if (folding_) return folding_->after();
  if (std::exchange(made_op_, false))
    check(context_.gpu.nccl(), context_.gpu.nccl().red_op_destroy(reduce_, comm),
          "ncclRedOpDestroy");
  if (algorithm_ != GatherAlgorithm::padded) return;
  std::int64_t row = 0;
  for (int r = 0; r < context_.size; ++r) {
    context_.copy(out(row), scratch_.data() + slot() * static_cast<std::size_t>(r),
                  bytes_of(op_.rows[r]));
    row += op_.rows[r];
  }
}

}  // namespace tutti::backend::nccl
