#include "conformance/autograd/gradient_check.hpp"

#include <cmath>
#include <cstring>
#include <numeric>

namespace tutti::test {

namespace {

// The truncation error is about step^2 = 2e-10, the rounding error about 1e-15 / step.
constexpr double step = 0x1p-16;
constexpr double tolerance = 1e-7;
// A wrong gradient is wrong along almost every direction.
constexpr std::uint64_t directions = 2;

}  // namespace

Numbers numbers(ProcessGroup& group, const ConstTensorView& array) {
  EXPECT_EQ(array.dtype, DType::f64);
  Numbers all(static_cast<std::size_t>(array.shape.numel()));
  if (!all.empty()) group.memory().copy(all.data(), array.data, array.bytes(), {});
  return all;
}

Buffer put(ProcessGroup& group, const Numbers& values, const Shape& shape) {
  Array content(DType::f64, shape);
  EXPECT_EQ(content.numel(), std::ssize(values));
  if (!values.empty()) std::memcpy(content.bytes().data(), values.data(), content.bytes().size());
  return {group, content};
}

/// The sum over the ranks in rank order, in place.
void sum_over_ranks(ProcessGroup& group, Numbers& values) {
  const auto n = std::ssize(values);
  const Buffer mine = put(group, values);
  const Buffer all(group, DType::f64, {n * group.size()});
  group.all_gather(mine, all);
  const Numbers got = numbers(group, all.view());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(group.size()); ++r)
      values[i] += got[r * values.size() + i];
  }
}

Numbers random_numbers(std::int64_t count, int rank, std::uint64_t salt) {
  Numbers all;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto random = mix(salt, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i));
    all.push_back(static_cast<double>(static_cast<std::int64_t>(random)) * 0x1p-63);
  }
  return all;
}

double dot(const Numbers& a, const Numbers& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

namespace {

/// This rank's part of the derivative of J along a direction of all ranks' x.
double slope_along(ProcessGroup& group, const Map& map, const Numbers& x, const Numbers& c,
                   const Numbers& direction) {
  const auto part_at = [&](double by) {
    Numbers moved = x;
    for (std::size_t i = 0; i < x.size(); ++i) moved[i] += by * direction[i];
    const Numbers y = map(group, moved);
    EXPECT_EQ(y.size(), c.size());
    return dot(c, y);
  };
  return (part_at(step) - part_at(-step)) / (2 * step);
}

/// Names the wrong elements.
void compare_elements(ProcessGroup& group, const Map& map, const Numbers& x, const Numbers& c,
                      const Numbers& gradient) {
  const auto sizes = exchange_rows(group, std::ssize(x));
  Numbers slopes;
  for (int owner = 0; owner < group.size(); ++owner) {
    for (std::int64_t i = 0; i < sizes[owner]; ++i) {
      Numbers direction(x.size());
      if (owner == group.rank()) direction[static_cast<std::size_t>(i)] = 1;
      slopes.push_back(slope_along(group, map, x, c, direction));
    }
  }
  sum_over_ranks(group, slopes);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(gradient[i], slopes[static_cast<std::size_t>(sizes.offset(group.rank())) + i],
                tolerance)
        << "by element " << i << " of rank " << group.rank() << " of " << group.size();
}

}  // namespace

void expect_gradient(ProcessGroup& group, const Map& map, const Numbers& x, const Numbers& c,
                     const Numbers& gradient) {
  ASSERT_EQ(gradient.size(), x.size());
  // The numerical derivative along each direction, and that of the gradient.
  Numbers sums(2 * directions);
  for (std::uint64_t k = 0; k < directions; ++k) {
    const Numbers direction = random_numbers(std::ssize(x), group.rank(), 1000 + k);
    sums[2 * k] = slope_along(group, map, x, c, direction);
    sums[2 * k + 1] = dot(gradient, direction);
  }
  sum_over_ranks(group, sums);
  bool right = true;  // The same on every rank.
  for (std::uint64_t k = 0; k < directions; ++k)
    right = right && std::abs(sums[2 * k] - sums[2 * k + 1]) <= tolerance;
  if (right) return;
  ADD_FAILURE() << "the gradient is not the derivative: along a direction it is " << sums[1]
                << ", not " << sums[0];
  compare_elements(group, map, x, c, gradient);
}

std::vector<ReduceOp> linear_ops(ProcessGroup& group) {
  std::vector<ReduceOp> ops{ReduceOp::sum, ReduceOp::avg};
  if (group.memory().device().type == DeviceType::cpu)
    ops.push_back(ReduceOp::premul(0.5 + group.rank()));
  return ops;
}

std::vector<Layout> uneven_layouts(int size) {
  Layout growing;
  Layout some_empty;
  for (int r = 0; r < size; ++r) {
    growing.push_back(1 + r);
    some_empty.push_back(r % 2 == 0 ? 0 : 4 - r);
  }
  return {growing, some_empty};
}

void on_group_and_parts(const World& world, const std::function<void(ProcessGroup& group)>& body) {
  on_ranks(world, [&](ProcessGroup& group) {
    body(group);
    if (group.size() == 1) return;
    for (const bool reversed : {true, false}) {
      auto part = reversed ? group.split(0, -group.rank()) : group.split(group.rank() % 2);
      ASSERT_TRUE(part.has_value());
      SCOPED_TRACE("rank " + std::to_string(group.rank()) + " is rank " +
                   std::to_string(part->rank()) + " of " + part->name());
      body(*part);
    }
  });
}

}  // namespace tutti::test
