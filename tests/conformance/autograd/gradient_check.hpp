#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <tutti/autograd.hpp>

#include "conformance/cells.hpp"

// Compares gradients with central differences; all ranks take part. Everything is in double.

namespace tutti::test {

using Numbers = std::vector<double>;

/// The elements of an f64 array of the group's device.
Numbers numbers(ProcessGroup& group, const ConstTensorView& array);
inline Numbers numbers(ProcessGroup& group, const Tensor& array) {
  return numbers(group, array.view());
}

/// Numbers as an f64 array of this shape in the group's memory.
Buffer put(ProcessGroup& group, const Numbers& values, const Shape& shape);
inline Buffer put(ProcessGroup& group, const Numbers& values) {
  return put(group, values, Shape::vector(std::ssize(values)));
}

/// Numbers between -1 and 1, the same for the same arguments, different on each rank.
Numbers random_numbers(std::int64_t count, int rank, std::uint64_t salt);

double dot(const Numbers& a, const Numbers& b);

/// This rank's value of a collective map of all ranks' inputs.
using Map = std::function<Numbers(ProcessGroup& group, const Numbers& x)>;

/// Collective. Checks that `gradient` is the derivative by this rank's x of J = sum over ranks s of
/// <c_s, map(x)_s> for constants c_s. Compares along random directions of all ranks' x together;
/// after a failure, element by element to locate it.
void expect_gradient(ProcessGroup& group, const Map& map, const Numbers& x, const Numbers& c,
                     const Numbers& gradient);

/// Collective. gradient_of(at, by_value) is the gradient of a forward at this x of this shape;
/// forward(group, array) returns a value and its backward at `at`.
template <typename Forward, typename GradientOf>
void expect_adjoint_at(ProcessGroup& group, const Numbers& x, const Shape& shape,
                       const Forward& forward, const GradientOf& gradient_of) {
  const Buffer in = put(group, x, shape);
  const auto at = forward(group, in);
  const Numbers c = random_numbers(at.value.shape().numel(), group.rank(), 77);
  const Buffer by_value = put(group, c, at.value.shape());
  const Tensor gradient = gradient_of(at, by_value);
  EXPECT_EQ(gradient.shape(), shape);
  const Map map = [&](ProcessGroup& g, const Numbers& moved) {
    const Buffer there = put(g, moved, shape);
    return numbers(g, forward(g, there).value);
  };
  expect_gradient(group, map, x, c, numbers(group, gradient));
}

/// Checks the backward of the forward's backward.
template <typename Forward>
void expect_adjoint_at(ProcessGroup& group, const Numbers& x, const Shape& shape,
                       const Forward& forward) {
  expect_adjoint_at(group, x, shape, forward, [&](const auto& at, const ConstTensorView& c) {
    return at.back(group, c).value;
  });
}

template <typename Forward>
void expect_adjoint(ProcessGroup& group, const Shape& shape, const Forward& forward) {
  expect_adjoint_at(group, random_numbers(shape.numel(), group.rank(), 5), shape, forward);
}

/// Runs `body` on the group of the World and on two sub-groups: all ranks in reverse, and every
/// other rank.
void on_group_and_parts(const World& world, const std::function<void(ProcessGroup& group)>& body);

/// The linear reductions whose gradients need no host arithmetic on this group. Each rank has its
/// own scale of premul_sum.
std::vector<ReduceOp> linear_ops(ProcessGroup& group);

/// Layouts with another number of rows on every rank; some have none.
std::vector<Layout> uneven_layouts(int size);

/// The rows of this rank in a layout, two numbers in each.
inline Shape own_rows(const ProcessGroup& group, const Layout& layout) {
  return {layout[index(group.rank())], 2};
}

/// {3}: the input of calls whose arrays have equal shapes.
inline const Shape equal_shape{3};

}  // namespace tutti::test
