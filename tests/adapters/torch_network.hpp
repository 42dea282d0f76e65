#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <tutti/ddp/gradient_reducer.hpp>

// A small network, its batches, and its training in one process.

namespace tutti::torch_network {

/// Returns the same numbers in every run.
inline at::Tensor numbers(at::IntArrayRef sizes, double phase) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kDouble) * 1.7 + phase).view(sizes);
}

/// 6 inputs, 5 hidden units with tanh, 2 outputs. Other seeds give other values.
struct Network : ::torch::nn::Module {
  explicit Network(double seed)
      : w1(register_parameter("w1", numbers({5, 6}, seed))),
        b1(register_parameter("b1", numbers({5}, seed + 1))),
        w2(register_parameter("w2", numbers({2, 5}, seed + 2))),
        b2(register_parameter("b2", numbers({2}, seed + 3))) {}
  /// Without `with_hidden`, w1 and b1 get no gradient.
  at::Tensor forward(const at::Tensor& x, bool with_hidden = true) {
    const at::Tensor h = at::tanh(x.matmul(w1.t()) + b1);
    return (with_hidden ? h : h.detach()).matmul(w2.t()) + b2;
  }
  at::Tensor w1, b1, w2, b2;
};

/// Has a buffer that forward() sets to the sum of the input.
struct Counting : Network {
  Counting() : Network(1), sum(register_buffer("sum", at::zeros({}, at::kDouble))) {}
  at::Tensor forward(const at::Tensor& x, bool with_hidden = true) {
    seen = sum.item<double>();
    const c10::NoGradGuard off;
    sum.copy_(x.sum());
    const c10::AutoGradMode on(true);
    return Network::forward(x, with_hidden);
  }
  at::Tensor sum;
  double seen = 0;  ///< The buffer at the begin of forward().
};

constexpr std::int64_t batch_rows = 13;

inline at::Tensor batch(int step) {
  return numbers({batch_rows, 8}, 10 + step);  // The last two columns are wanted outputs.
}
/// Every size-th row from `rank` on: ranks have different numbers of rows.
inline at::Tensor part(const at::Tensor& rows, const ProcessGroup& group) {
  return rows.slice(0, group.rank(), batch_rows, group.size());
}
template <typename Model>
inline at::Tensor loss_of(Model& model, const at::Tensor& rows, bool with_hidden = true) {
  const at::Tensor error = model.forward(rows.narrow(1, 0, 6), with_hidden) - rows.narrow(1, 6, 2);
  return (error * error).sum() / batch_rows;
}

inline void update(const ::torch::nn::Module& module) {
  const c10::NoGradGuard off;
  for (const at::Tensor& p : module.parameters())
    if (p.grad().defined()) p.sub_(p.grad(), 0.3);
}
inline Network trained_alone(int steps) {
  Network network(1);
  for (int step = 0; step < steps; ++step) {
    network.zero_grad();
    loss_of(network, batch(step)).backward();
    update(network);
  }
  return network;
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected,
                        double tolerance = 1e-10) {
  ASSERT_TRUE(actual.defined() && expected.defined());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LE((actual.to(expected.device()) - expected).abs().max().item<double>(), tolerance)
      << actual << "\nexpected: " << expected;
}
inline void expect_same_parameters(const ::torch::nn::Module& actual,
                                   const ::torch::nn::Module& expected) {
  const auto want = expected.named_parameters();
  for (const auto& [name, p] : actual.named_parameters().pairs()) {
    SCOPED_TRACE(name);
    expect_near(p, want[name]);
  }
}
inline void expect_same_gradients(const ::torch::nn::Module& actual,
                                  const ::torch::nn::Module& expected) {
  const auto want = expected.named_parameters();
  for (const auto& [name, p] : actual.named_parameters().pairs()) {
    SCOPED_TRACE(name);
    expect_near(p.grad(), want[name].grad());
  }
}

/// Buckets of about one parameter each.
inline ddp::ReducerOptions small_buckets() {
  return {.first_bucket_cap = 16, .bucket_cap = 64};
}

}  // namespace tutti::torch_network
