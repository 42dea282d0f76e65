#include <algorithm>
#include <vector>

#include "ddp/power_sgd_plan.hpp"

// The arithmetic of PowerSGD by a framework's operators. P [rank, rows] and Q [rank, columns] have
// the columns of the factors as rows, as on the host.

namespace tutti::ddp {
namespace {

TensorView matrix_of(const TensorView& array, std::int64_t at, std::int64_t rows,
                     std::int64_t columns) {
  TensorView view = part(array, at, rows * columns);
  view.shape = Shape({rows, columns});
  return view;
}
TensorView m_of(Plan& plan, const Matrix& x) {
  return matrix_of(plan.m, x.at, x.rows, x.columns);
}
TensorView p_of(Plan& plan, const Matrix& x) {
  return matrix_of(plan.sent.array, x.p, x.rank, x.rows);
}
TensorView q_of(Plan& plan, const Matrix& x) {
  return matrix_of(plan.q.array, x.q, x.rank, x.columns);
}

void copy(const Plan& plan, const ConstTensorView& from, const TensorView& to, double factor = 1,
          bool add = false) {
  plan.device->scale(from, factor, to, add, plan.stream);
}
void to_message(const Plan& plan, Summed& sum) {
  if (sum.is_narrow()) copy(plan, sum.array, sum.narrow);
}
void from_message(const Plan& plan, Summed& sum) {
  if (sum.is_narrow()) copy(plan, sum.narrow, sum.array, sum.ranks);
}

/// Writes an array that `fill` makes in host memory.
template <typename T, typename F>
void write(Plan& plan, const TensorView& to, const F& fill) {
  std::vector<T> values(static_cast<std::size_t>(to.shape.numel()));
  fill(values.data());
  plan.memory->copy(to.data, values.data(), to.bytes(), plan.stream);
}

void start_q(Plan& plan, Matrix& x, std::int64_t step) {
  const auto& options = *plan.options;
  const TensorView q = q_of(plan, x);
  const TensorView refill = matrix_of(plan.refill, x.q, x.rank, x.columns);
  with_compute_type(q.dtype, [&]<typename T>() {
    if (!options.warm_start || !x.has_q)
      write<T>(plan, q, [&](T* values) { fill_q(options, x, step, values); });
    if (!x.has_refill)
      write<T>(plan, refill, [&](T* values) { fill_random_q(options, x, values); });
  });
  x.has_q = x.has_refill = true;
  plan.device->orthonormalize(q, options.orthogonalization_epsilon, refill, plan.stream);
}

}  // namespace

void compress_on_device(Plan& plan, const Bucket& bucket, std::int64_t step) {
  for (const Segment& s : plan.compressed)
    copy(plan, part(bucket.buffer(), s.from, s.count), part(plan.m, s.at, s.count), 1,
         plan.options->error_feedback);
  for (const Segment& s : plan.rest)
    copy(plan, part(bucket.buffer(), s.from, s.count), part(plan.sent.array, s.at, s.count));
  for (Matrix& x : plan.matrices) {
    start_q(plan, x, step);
    plan.device->multiply(q_of(plan, x), false, m_of(plan, x), true, p_of(plan, x), plan.stream);
  }
  to_message(plan, plan.sent);
}

void project_on_device(Plan& plan) {
  from_message(plan, plan.sent);
  for (const Matrix& x : plan.matrices) {
    plan.device->orthonormalize(p_of(plan, x), plan.options->orthogonalization_epsilon, {},
                                plan.stream);
    plan.device->multiply(p_of(plan, x), false, m_of(plan, x), false, q_of(plan, x), plan.stream);
  }
  to_message(plan, plan.q);
}

void decompress_on_device(Plan& plan, const Bucket& bucket) {
  from_message(plan, plan.q);
  const int size = bucket.group().size();
  copy(plan, plan.q.array, plan.q.array, 1.0 / size);
  for (const Matrix& x : plan.matrices) {
    const TensorView product = matrix_of(plan.row, 0, x.rows, x.columns);
    plan.device->multiply(p_of(plan, x), true, q_of(plan, x), false, product, plan.stream);
    for (const Segment& s : plan.compressed)
      if (s.at >= x.at && s.at < x.at + product.shape.numel())
        copy(plan, part(product, s.at - x.at, s.count), part(bucket.buffer(), s.from, s.count),
             size / bucket.divisor());
    if (plan.options->error_feedback) plan.device->subtract(m_of(plan, x), product, plan.stream);
  }
  for (const Segment& s : plan.rest)
    copy(plan, part(plan.sent.array, s.at, s.count), part(bucket.buffer(), s.from, s.count),
         1 / bucket.divisor());
}

}  // namespace tutti::ddp
