#include "ddp/power_sgd_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "ddp/low_rank.hpp"
#include "values/philox.hpp"

namespace tutti::ddp {
namespace {

template <typename T>
T* data(Tensor& array) {
  return static_cast<T*>(array.data());
}

/// Writes random numbers, approximately normal with mean 0. They are sums of integers, and so equal
/// on every machine.
template <typename T>
void fill_random(T* to, std::int64_t count, std::uint64_t seed, std::size_t id, std::int64_t step,
                 std::uint32_t stream) {
  const auto low = [](auto x) { return static_cast<std::uint32_t>(x); };
  const std::array<std::uint32_t, 2> key{low(seed), low(seed >> 32)};
  // The counter has 2^20 streams of 2^44 numbers for each step and matrix.
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words =
        internal::philox({low(i), low(i >> 32) ^ (stream << 12), low(id), low(step)}, key);
    double sum = 0;
    for (const auto word : words) sum += static_cast<double>(word) * 0x1p-31 - 1;
    to[i] = static_cast<T>(sum);
  }
}

/// Fills Q by the caller's function, which writes it by rows.
template <typename T>
void fill_given(const PowerSgdOptions& options, const Matrix& matrix, T* q) {
  std::vector<T> rows(static_cast<std::size_t>(matrix.columns * matrix.rank));
  options.initial_q(matrix.id, {rows.data(), dtype_of<T>, Shape({matrix.columns, matrix.rank})});
  for (std::int64_t j = 0; j < matrix.columns; ++j)
    for (int k = 0; k < matrix.rank; ++k)
      q[k * matrix.columns + j] = rows[static_cast<std::size_t>(j * matrix.rank + k)];
}

}  // namespace

template <typename T>
void fill_q(const PowerSgdOptions& options, const Matrix& matrix, std::int64_t step, T* q) {
  if (options.initial_q)
    fill_given(options, matrix, q);
  else
    fill_random(q, matrix.columns * matrix.rank, options.seed, matrix.id, step, 0);
}

template <typename T>
void fill_random_q(const PowerSgdOptions& options, const Matrix& matrix, T* q) {
  fill_random(q, matrix.columns * matrix.rank, options.seed, matrix.id, 0, 1);
}

template void fill_q(const PowerSgdOptions&, const Matrix&, std::int64_t, float*);
template void fill_q(const PowerSgdOptions&, const Matrix&, std::int64_t, double*);
template void fill_random_q(const PowerSgdOptions&, const Matrix&, float*);
template void fill_random_q(const PowerSgdOptions&, const Matrix&, double*);

namespace {

/// Makes Q with orthonormal columns, from the Q of the last step or a new one.
template <typename T>
void start_q(const PowerSgdOptions& options, Matrix& matrix, std::int64_t step, T* q) {
  if (!options.warm_start || !matrix.has_q) fill_q(options, matrix, step, q);
  matrix.has_q = true;
  // A gradient of lower rank may have set a column to 0, which would then stay 0 for ever.
  std::uint32_t stream = 0;
  const auto refill = [&](int k) {
    fill_random(q + k * matrix.columns, matrix.columns, options.seed, matrix.id, step, ++stream);
  };
  orthogonalize<T>(q, matrix.columns, matrix.rank, options.orthogonalization_epsilon, refill);
}

/// Writes the array to its message, or the message to its array.
template <typename T>
void to_message(Summed& sum) {
  const Segment all{0, 0, 0, sum.array.shape().numel()};
  if (sum.is_narrow()) unpack(std::span(&all, 1), data<T>(sum.array), T(1), sum.narrow);
}
template <typename T>
void from_message(Summed& sum) {
  const Segment all{0, 0, 0, sum.array.shape().numel()};
  if (!sum.is_narrow()) return;
  pack(std::span(&all, 1), sum.narrow, data<T>(sum.array), false);
  for (T& x : std::span(data<T>(sum.array), static_cast<std::size_t>(all.count)))
    x *= static_cast<T>(sum.ranks);
}

template <typename T>
void compress_as(Plan& plan, const Bucket& bucket, std::int64_t step) {
  pack(std::span(plan.compressed), bucket.buffer(), data<T>(plan.m), plan.options->error_feedback);
  pack(std::span(plan.rest), bucket.buffer(), data<T>(plan.sent.array), false);
  for (Matrix& matrix : plan.matrices) {
    T* q = data<T>(plan.q.array) + matrix.q;
    start_q(*plan.options, matrix, step, q);
    multiply(data<T>(plan.m) + matrix.at, matrix.rows, matrix.columns, q, matrix.rank,
             data<T>(plan.sent.array) + matrix.p);
  }
  to_message<T>(plan.sent);
}

template <typename T>
void project_as(Plan& plan) {
  from_message<T>(plan.sent);
  for (const Matrix& matrix : plan.matrices) {
    T* p = data<T>(plan.sent.array) + matrix.p;
    orthogonalize(p, matrix.rows, matrix.rank, plan.options->orthogonalization_epsilon);
    multiply_transposed(data<T>(plan.m) + matrix.at, matrix.rows, matrix.columns, p, matrix.rank,
                        data<T>(plan.q.array) + matrix.q);
  }
  to_message<T>(plan.q);
}

/// Writes consecutive elements of m, times `scale`, to the gradients in the bucket.
template <typename T>
class RowWriter {
 public:
  RowWriter(std::span<const Segment> segments, const TensorView& buffer, T scale)
      : segments_(segments), buffer_(buffer), scale_(scale) {}

  /// Writes `count` values of the elements from `at` on. Values after the last gradient are
  /// dropped.
  void write(std::int64_t at, const T* values, std::int64_t count) {
    while (count > 0 && next_ < segments_.size()) {
      const Segment& s = segments_[next_];
      const std::int64_t here = std::min(count, s.at + s.count - at);
      const Segment place{s.id, s.from + at - s.at, 0, here};
      unpack(std::span(&place, 1), values, scale_, buffer_);
      if (at + here == s.at + s.count) ++next_;
      at += here;
      values += here;
      count -= here;
    }
  }

 private:
  std::span<const Segment> segments_;
  const TensorView& buffer_;
  T scale_;
  std::size_t next_ = 0;
};

template <typename T>
void decompress_as(Plan& plan, const Bucket& bucket) {
  from_message<T>(plan.q);
  // The error is the difference from the mean over the ranks, whatever the divisor of the result.
  const int size = bucket.group().size();
  RowWriter<T> writer(plan.compressed, bucket.buffer(), static_cast<T>(size / bucket.divisor()));
  T* row = data<T>(plan.row);
  T* q = data<T>(plan.q.array);
  for (std::int64_t i = 0; i < plan.q.array.shape().numel(); ++i) q[i] /= static_cast<T>(size);
  for (const Matrix& matrix : plan.matrices)
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      product_row(data<T>(plan.sent.array) + matrix.p, matrix.rows, i, q + matrix.q, matrix.columns,
                  matrix.rank, row);
      const std::int64_t at = matrix.at + i * matrix.columns;
      writer.write(at, row, matrix.columns);
      if (!plan.options->error_feedback) continue;
      T* m = data<T>(plan.m) + at;
      for (std::int64_t j = 0; j < matrix.columns; ++j) {
        const T error = m[j] - row[j];
        m[j] = std::isfinite(error) ? error : T(0);
      }
    }
  unpack(std::span(plan.rest), data<T>(plan.sent.array), static_cast<T>(1 / bucket.divisor()),
         bucket.buffer());
}

}  // namespace

void compress(Plan& plan, const Bucket& bucket, std::int64_t step) {
  if (plan.device != nullptr) return compress_on_device(plan, bucket, step);
  with_compute_type(plan.m.dtype(), [&]<typename T>() { compress_as<T>(plan, bucket, step); });
}

void project(Plan& plan) {
  if (plan.device != nullptr) return project_on_device(plan);
  with_compute_type(plan.m.dtype(), [&]<typename T>() { project_as<T>(plan); });
}

void decompress(Plan& plan, const Bucket& bucket) {
  if (plan.device != nullptr) return decompress_on_device(plan, bucket);
  with_compute_type(plan.m.dtype(), [&]<typename T>() { decompress_as<T>(plan, bucket); });
}

}  // namespace tutti::ddp
