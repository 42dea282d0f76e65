#include "group/validate.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/fingerprint.hpp"
#include "kernels/reproducible.hpp"
#include "values/fail.hpp"

// Each message says what was passed and what is permitted, and gives a remedy where that is not
// obvious. A correct call makes only a few inline comparisons; the code that throws is cold.

namespace tutti::internal {
namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

/// Throws if an array that is not plain is invalid; returns if it is valid, for example empty.
[[gnu::cold, gnu::noinline]] void refuse_array(const char* what, const ConstTensorView& v,
                                               const Bounds& b) {
  if (static_cast<int>(v.dtype) >= dtype_count)
    failf(Errc::invalid_argument, "{}: dtype {} is unknown; there are {} dtypes, numbered from 0",
          what, static_cast<int>(v.dtype), dtype_count);
  const auto size = static_cast<std::int64_t>(size_of(v.dtype));
  const auto numel = v.shape.numel();
  if (numel > most / size)
    failf(Errc::count_overflow, "{} {}: {} elements x {} bytes exceed 2^63 - 1", what,
          to_string(v.shape), numel, size);
  if (numel == 0) return;
  if (v.data == nullptr)
    failf(Errc::invalid_argument, "{} is null, but {} {} has {} bytes; pass the array's address",
          what, name_of(v.dtype), to_string(v.shape), numel * size);
  if (v.device == b.device) return;
  failf(Errc::invalid_argument,
        "{} is on {}, but this group works on {}; move the array or make a group for its device",
        what, to_string(v.device), to_string(b.device));
}

/// True for nearly every valid array, after a few comparisons.
template <typename View>
constexpr bool is_plain_array(const View& v, const Bounds& b) noexcept {
  // No element type has more than 16 bytes, so the size in bytes fits too.
  return static_cast<int>(v.dtype) < dtype_count && v.shape.numel() <= INT64_MAX / 16 &&
         v.data != nullptr && v.device == b.device;
}

template <typename View>
void check_array(const char* what, const View& v, const Bounds& b) {
  if (!is_plain_array(v, b)) [[unlikely]]
    refuse_array(what, v, b);
}

void check_dtypes(const Op& op) {
  if (op.in.dtype != op.out.dtype) [[unlikely]]
    failf(Errc::invalid_argument, "in is {} and out is {}; they must be equal",
          name_of(op.in.dtype), name_of(op.out.dtype));
}

void check_same_shape(const Op& op) {
  check_dtypes(op);
  if (op.in.shape.numel() != op.out.shape.numel() || !(op.in.shape == op.out.shape)) [[unlikely]]
    failf(Errc::invalid_argument, "in is {} and out is {}; they must be equal",
          to_string(op.in.shape), to_string(op.out.shape));
}

void check_row_shape(const Op& op) {
  check_dtypes(op);
  const auto a = op.in.shape.row_dims();
  const auto b = op.out.shape.row_dims();
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) [[unlikely]]
    failf(Errc::invalid_argument,
          "in is {} and out is {}; all dimensions after the first must be equal",
          to_string(op.in.shape), to_string(op.out.shape));
}

/// Refuses arrays that share memory, unless `part` begins `offset` bytes into `whole`. `allowed`:
/// that rule in words.
void check_overlap(const void* part, std::size_t part_bytes, const void* whole,
                   std::size_t whole_bytes, std::size_t offset, const char* allowed) {
  if (part == static_cast<const std::byte*>(whole) + offset ||
      disjoint(part, part_bytes, whole, whole_bytes)) [[likely]]
    return;
  failf(Errc::invalid_argument, "in and out overlap; {}", allowed);
}

void check_root(const Op& op, const Bounds& b) {
  if (op.root < 0 || op.root >= b.size) [[unlikely]]
    failf(Errc::invalid_argument, "root is {}; this group has ranks 0 to {}", op.root, b.size - 1);
}

}  // namespace

bool sums_reproducibly(DType dtype, ReduceOp::Kind kind, const Bounds& b, const CallOptions& o) {
  using Kind = ReduceOp::Kind;
  if (!o.reproducible && !b.reproducible) return false;
  if (kind == Kind::custom || (kind == Kind::prod && is_float(dtype))) [[unlikely]]
    failf(Errc::unsupported,
          "{} of {} is not reproducible: only sum, avg and premul_sum of floats are; use "
          "order_fixed without reproducible (TUTTI_REPRODUCIBLE)",
          name_of(kind), name_of(dtype));
  if (!has_reproducible_sum(dtype, kind)) return false;  // By itself.
  if (static_cast<std::size_t>(b.size) > most_addends) [[unlikely]]
    failf(Errc::unsupported, "a reproducible sum has at most {} addends; this group has {} ranks",
          most_addends, b.size);
  return true;
}

namespace {

void check_reduce(Op& op, DType dtype, const Bounds& b, const CallOptions& o) {
  using Kind = ReduceOp::Kind;
  const auto kind = op.reduce.kind;
  if (static_cast<int>(kind) >= reduce_op_count) [[unlikely]]
    failf(Errc::invalid_argument,
          "reduce op {} is unknown; there are {} reduce ops, numbered from 0",
          static_cast<int>(kind), reduce_op_count);
  if (is_complex(dtype) && kind >= Kind::prod && kind <= Kind::bxor) [[unlikely]]
    failf(Errc::unsupported,
          "{} of {}: complex numbers support only sum, avg, premul_sum and custom", name_of(kind),
          name_of(dtype));
  if (kind == Kind::custom && op.reduce.function == nullptr) [[unlikely]]
    failf(Errc::invalid_argument, "custom: the function is null; pass one to ReduceOp::custom()");
  if (kind == Kind::avg && !is_float(dtype) && !is_complex(dtype)) [[unlikely]] {
    if (dtype == DType::boolean)
      failf(Errc::invalid_argument, "avg of boolean has no meaning; use sum, which is 'or'");
    if (!o.integer_avg)
      failf(Errc::invalid_argument,
            "avg of {} is not exact; use sum, or allow it with integer_avg = true", name_of(dtype));
  }
  if (kind == Kind::premul_sum && !is_float(dtype) && !is_complex(dtype)) [[unlikely]]
    failf(Errc::invalid_argument, "premul_sum of {}: only floats and complex numbers can be scaled",
          name_of(dtype));
  if (kind >= Kind::band && kind <= Kind::bxor && is_float(dtype)) [[unlikely]]
    failf(Errc::invalid_argument, "{} of {}: floats have no bitwise operations", name_of(kind),
          name_of(dtype));
  const bool scan = op.kind == Operation::scan || op.kind == Operation::exclusive_scan;
  if (scan && kind == Kind::avg) [[unlikely]]
    failf(Errc::invalid_argument, "avg has no meaning in {}; use sum", name_of(op.kind));
  op.reproducible = sums_reproducibly(dtype, kind, b, o);
}

/// Returns the rows of all ranks together. @throws Error invalid_argument, count_overflow.
std::int64_t checked_total(const char* what, const Rows& rows, int size) {
  std::int64_t total = 0;
  if (!rows.listed()) {
    if (__builtin_mul_overflow(rows[0], static_cast<std::int64_t>(size), &total)) [[unlikely]]
      failf(Errc::count_overflow, "{}: {} rows x {} ranks exceed 2^63 - 1", what, rows[0], size);
    return total;
  }
  if (std::ssize(rows.list()) != size) [[unlikely]]
    failf(Errc::invalid_argument, "{} has {} entries; the world size is {}", what,
          rows.list().size(), size);
  for (int r = 0; r < size; ++r) {
    if (rows[r] < 0) [[unlikely]]
      failf(Errc::invalid_argument, "{}[{}] is {}; it must be >= 0", what, r, rows[r]);
    std::int64_t sum = 0;
    if (__builtin_add_overflow(total, rows[r], &sum)) [[unlikely]]
      failf(Errc::count_overflow, "{}: {} + {} rows exceed 2^63 - 1", what, total, rows[r]);
    total = sum;
  }
  return total;
}

void check_given(const char* what, const Rows& rows) {
  if (!rows.listed() && rows.given() && rows[0] < 0) [[unlikely]]
    failf(Errc::invalid_argument, "{} is {}; it must be >= 0", what, rows[0]);
}

/// Checks `rows` against `part`, this rank's array, and `whole`, which has all ranks' rows (null if
/// this rank has no such array). Sets `rows` if they were not given.
void check_rows(Rows& rows, const Shape& part, const char* part_name, const Shape* whole,
                const char* whole_name, const Bounds& b) {
  check_given("rows", rows);
  if (!rows.given()) rows = Rows(part.rows());
  const auto total = checked_total("rows", rows, b.size);
  if (part.rows() != rows[b.rank]) [[unlikely]]
    failf(Errc::invalid_argument,
          "{} is {}, which has {} rows; the argument rows gives {} for rank {}", part_name,
          to_string(part), part.rows(), rows[b.rank], b.rank);
  if (whole != nullptr && whole->rows() != total) [[unlikely]]
    failf(Errc::invalid_argument, "{} is {}, which has {} rows; the rows of all ranks add up to {}",
          whole_name, to_string(*whole), whole->rows(), total);
}

void check_exchange(const char* what, Rows& rows, const Shape& shape, const char* array,
                    const Bounds& b) {
  check_given(what, rows);
  if (!rows.given()) {
    if (shape.rows() % b.size != 0) [[unlikely]]
      failf(Errc::invalid_argument,
            "{} is {}, whose {} rows are not a multiple of {} ranks; pass {}", array,
            to_string(shape), shape.rows(), b.size, what);
    rows = Rows(shape.rows() / b.size);
  }
  const auto total = checked_total(what, rows, b.size);
  if (shape.rows() != total) [[unlikely]]
    failf(Errc::invalid_argument, "{} is {}, which has {} rows; {} adds up to {}", array,
          to_string(shape), shape.rows(), what, total);
}

std::size_t block_offset(const Rows& rows, int rank, std::size_t row_bytes) {
  return static_cast<std::size_t>(rows.offset(rank)) * row_bytes;
}

constexpr const char* same_address = "in place they must begin at the same address";
constexpr const char* own_block = "in place the part must be this rank's own block of the whole";

void check_elementwise_overlap(const Op& op) {
  check_overlap(op.out.data, op.out.bytes(), op.in.data, op.in.bytes(), 0, same_address);
}

}  // namespace

void check_array(const char* what, const ConstTensorView& array, const Device& device) {
  check_array(what, array, Bounds{.device = device});
}

void check_apart(const ConstTensorView& in, const TensorView& out, std::string_view verb) {
  if (!disjoint(in.data, in.bytes(), out.data, out.bytes())) [[unlikely]]
    failf(Errc::invalid_argument, "in and out overlap; {} does not work in place", verb);
}

void check_timeout(const CallOptions& options) {
  if (options.timeout.count() < 0) [[unlikely]]
    failf(Errc::invalid_argument,
          "timeout is {} ns; it must be >= 0, where 0 stands for the group's timeout",
          options.timeout.count());
}

void validate(Op& op, const Bounds& b, const CallOptions& o) {
  check_timeout(o);
  const bool at_root = op.root == b.rank;
  switch (op.kind) {
    case Operation::all_reduce:
    case Operation::scan:
    case Operation::exclusive_scan:
      check_array("in", op.in, b);
      check_array("out", op.out, b);
      check_same_shape(op);
      check_elementwise_overlap(op);
      check_reduce(op, op.in.dtype, b, o);
      return;
    case Operation::broadcast:
      check_root(op, b);
      check_array("data", op.in, b);
      return;
    case Operation::reduce:
      check_root(op, b);
      check_array("in", op.in, b);
      check_reduce(op, op.in.dtype, b, o);
      if (!at_root) {
        op.out = {};
        return;
      }
      check_array("out", op.out, b);
      check_same_shape(op);
      check_elementwise_overlap(op);
      return;
    case Operation::all_gather:
    case Operation::gather: {
      const bool has_out = op.kind == Operation::all_gather || at_root;
      if (op.kind == Operation::gather) check_root(op, b);
      check_array("in", op.in, b);
      if (has_out) {
        check_array("out", op.out, b);
        check_row_shape(op);
      }
      check_rows(op.rows, op.in.shape, "in", has_out ? &op.out.shape : nullptr, "out", b);
      if (has_out)
        check_overlap(op.in.data, op.in.bytes(), op.out.data, op.out.bytes(),
                      block_offset(op.rows, b.rank, op.out.row_bytes()), own_block);
      else
        op.out = {};
      return;
    }
    case Operation::all_gather_bounded:
      check_array("in", op.in, b);
      check_array("out", op.out, b);
      check_row_shape(op);
      if (op.out.shape.rows() % b.size != 0) [[unlikely]]
        failf(Errc::invalid_argument,
              "out is {}, which has {} rows; the number must be a multiple of {}, the world size",
              to_string(op.out.shape), op.out.shape.rows(), b.size);
      op.rows = Rows(op.out.shape.rows() / b.size);
      if (op.in.shape.rows() > op.rows[b.rank]) [[unlikely]]
        failf(Errc::invalid_argument,
              "in is {}, which has {} rows; out {} has room for {} rows of each rank",
              to_string(op.in.shape), op.in.shape.rows(), to_string(op.out.shape), op.rows[b.rank]);
      check_overlap(op.in.data, op.in.bytes(), op.out.data, op.out.bytes(),
                    block_offset(op.rows, b.rank, op.out.row_bytes()), own_block);
      return;
    case Operation::reduce_scatter:
    case Operation::scatter: {
      const bool has_in = op.kind == Operation::reduce_scatter || at_root;
      if (op.kind == Operation::scatter) check_root(op, b);
      check_array("out", op.out, b);
      if (has_in) {
        check_array("in", op.in, b);
        check_row_shape(op);
      }
      check_rows(op.rows, op.out.shape, "out", has_in ? &op.in.shape : nullptr, "in", b);
      if (has_in)
        check_overlap(op.out.data, op.out.bytes(), op.in.data, op.in.bytes(),
                      block_offset(op.rows, b.rank, op.in.row_bytes()), own_block);
      else
        op.in = {};
      if (op.kind == Operation::reduce_scatter) check_reduce(op, op.out.dtype, b, o);
      return;
    }
    case Operation::all_to_all:
      check_array("in", op.in, b);
      check_array("out", op.out, b);
      check_row_shape(op);
      check_exchange("send_rows", op.send_rows, op.in.shape, "in", b);
      check_exchange("recv_rows", op.rows, op.out.shape, "out", b);
      if (op.send_rows[b.rank] != op.rows[b.rank]) [[unlikely]]
        failf(Errc::invalid_argument,
              "this rank sends itself {} rows but expects {}; send_rows[{}] and recv_rows[{}] must "
              "be equal",
              op.send_rows[b.rank], op.rows[b.rank], b.rank, b.rank);
      check_apart(op.in, op.out, name_of(op.kind));
      return;
    case Operation::barrier:
      return;
    case Operation::send:
      check_array("data", op.in, b);
      return;
    case Operation::recv:
      check_array("data", op.out, b);
      return;
    case Operation::recv_any:
      break;  // No Op has it.
  }
  failf(Errc::invalid_argument, "operation {} is unknown; there are {} operations, numbered from 0",
        static_cast<int>(op.kind), operation_count);
}

}  // namespace tutti::internal
