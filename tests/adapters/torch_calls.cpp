#include "torch_calls.hpp"

#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <tutti/adapters/torch.hpp>

namespace tutti::test {
namespace {

constexpr int columns = 3;

int root_of(int ranks) {
  return ranks - 1;
}

// Uneven, one of them empty.
RowLayout uneven(int ranks) {
  std::vector<std::int64_t> rows{2, 0, 3, 1};
  rows.resize(static_cast<std::size_t>(ranks));
  return RowLayout(rows);
}
at::Tensor rows_of(const at::Tensor& whole, const RowLayout& layout, int rank) {
  return whole.narrow(0, layout.offset(rank), layout[rank]);
}

// Block of rank `from` for every rank.
std::vector<std::int64_t> sent_by(int from, int ranks) {
  std::vector<std::int64_t> rows;
  for (int to = 0; to < ranks; ++to) rows.push_back((from + 2 * to + 1) % 3);
  return rows;
}
std::vector<std::int64_t> received_by(int to, int ranks) {
  std::vector<std::int64_t> rows;
  for (int from = 0; from < ranks; ++from)
    rows.push_back(sent_by(from, ranks)[static_cast<std::size_t>(to)]);
  return rows;
}

std::vector<std::int64_t> same_sizes(int, int) {
  return {2, columns};
}
std::vector<std::int64_t> uneven_sizes(int rank, int ranks) {
  return {uneven(ranks)[rank], columns};
}
std::vector<std::int64_t> whole_sizes(int, int ranks) {
  return {uneven(ranks).total(), columns};
}

int ranks_of(const Tensors& in) {
  return static_cast<int>(in.size());
}
Tensors everywhere(const at::Tensor& out, int ranks) {
  return Tensors(static_cast<std::size_t>(ranks), out);
}
Tensors at_root(const at::Tensor& out, int ranks) {
  Tensors all = everywhere(at::empty({0}, out.options()), ranks);
  all[static_cast<std::size_t>(root_of(ranks))] = out;
  return all;
}
Tensors each_its_rows(const at::Tensor& whole, int ranks) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rows_of(whole, uneven(ranks), rank));
  return all;
}

at::Tensor sum_of(const Tensors& in) {
  return at::stack(in).sum(0);
}
// Rank r's input times r + 1.
at::Tensor weighted_sum_of(const Tensors& in) {
  Tensors scaled;
  for (const at::Tensor& x : in) scaled.push_back(x * static_cast<double>(scaled.size() + 1));
  return sum_of(scaled);
}
ReduceOp weighted(const ProcessGroup& group) {
  return ReduceOp::premul(group.rank() + 1);
}

void add_all_reduces(std::vector<TorchCall>& calls) {
  const auto add = [&](const std::string& name, ReduceOp op,
                       const std::function<at::Tensor(const at::Tensor& stacked)>& combine) {
    calls.push_back({"all_reduce_" + name, 1, same_sizes,
                     [op](ProcessGroup& group, const at::Tensor& in) {
                       return libtorch::all_reduce(group, in, op);
                     },
                     [combine](const Tensors& in) {
                       return everywhere(combine(at::stack(in)), ranks_of(in));
                     }});
  };
  add("sum", ReduceOp::sum, [](const at::Tensor& x) { return x.sum(0); });
  add("avg", ReduceOp::avg, [](const at::Tensor& x) { return x.mean(0); });
  // Both share the gradient of tied elements equally.
  add("min", ReduceOp::min, [](const at::Tensor& x) { return x.amin(0); });
  add("max", ReduceOp::max, [](const at::Tensor& x) { return x.amax(0); });
  add("product", ReduceOp::prod, [](const at::Tensor& x) { return x.prod(0); });
  calls.push_back(
      {"all_reduce_premul_sum", 1, same_sizes,
       [](ProcessGroup& group, const at::Tensor& in) {
         return libtorch::all_reduce(group, in, weighted(group));
       },
       [](const Tensors& in) { return everywhere(weighted_sum_of(in), ranks_of(in)); }});
}

void add_gathers(std::vector<TorchCall>& calls) {
  calls.push_back({"all_gather_rows", 1, uneven_sizes,
                   [](ProcessGroup& group, const at::Tensor& in) {
                     return libtorch::all_gather_rows(group, in, GradScale::sum);
                   },
                   [](const Tensors& in) { return everywhere(at::cat(in), ranks_of(in)); }});
  calls.push_back({"all_gather_rows_of_scalars", 2,
                   [](int, int) { return std::vector<std::int64_t>{}; },
                   [](ProcessGroup& group, const at::Tensor& in) {
                     return libtorch::all_gather_rows(group, in, GradScale::sum);
                   },
                   [](const Tensors& in) { return everywhere(at::stack(in), ranks_of(in)); }});
  const auto add_scatter = [&](const std::string& name, auto op_of, auto combine) {
    calls.push_back(
        {"reduce_scatter_rows_" + name, 1, whole_sizes,
         [op_of](ProcessGroup& group, const at::Tensor& in) {
           return libtorch::reduce_scatter_rows(group, in, uneven(group.size()), op_of(group));
         },
         [combine](const Tensors& in) { return each_its_rows(combine(in), ranks_of(in)); }});
  };
  add_scatter(
      "sum", [](const ProcessGroup&) { return ReduceOp::sum; }, sum_of);
  add_scatter(
      "avg", [](const ProcessGroup&) { return ReduceOp::avg; },
      [](const Tensors& in) { return at::stack(in).mean(0); });
  add_scatter("premul_sum", weighted, weighted_sum_of);
}

void add_rooted(std::vector<TorchCall>& calls) {
  const auto add_reduce = [&](const std::string& name, auto op_of, auto combine) {
    calls.push_back({"reduce_" + name, 1, same_sizes,
                     [op_of](ProcessGroup& group, const at::Tensor& in) {
                       return libtorch::reduce(group, in, root_of(group.size()), op_of(group));
                     },
                     [combine](const Tensors& in) { return at_root(combine(in), ranks_of(in)); }});
  };
  add_reduce(
      "sum", [](const ProcessGroup&) { return ReduceOp::sum; }, sum_of);
  add_reduce(
      "avg", [](const ProcessGroup&) { return ReduceOp::avg; },
      [](const Tensors& in) { return at::stack(in).mean(0); });
  add_reduce("premul_sum", weighted, weighted_sum_of);
  calls.push_back({"broadcast", 1, same_sizes,
                   [](ProcessGroup& group, const at::Tensor& in) {
                     return libtorch::broadcast(group, in, root_of(group.size()));
                   },
                   [](const Tensors& in) { return everywhere(in.back(), ranks_of(in)); }});
  calls.push_back({"gather_rows", 1, uneven_sizes,
                   [](ProcessGroup& group, const at::Tensor& in) {
                     return libtorch::gather_rows(group, in, root_of(group.size()));
                   },
                   [](const Tensors& in) { return at_root(at::cat(in), ranks_of(in)); }});
  calls.push_back({"scatter_rows", 1,
                   [](int rank, int ranks) {
                     return rank == root_of(ranks) ? whole_sizes(rank, ranks)
                                                   : std::vector<std::int64_t>{0};
                   },
                   [](ProcessGroup& group, const at::Tensor& in) {
                     const RowLayout layout = uneven(group.size());
                     const int root = root_of(group.size());
                     return libtorch::scatter_rows(
                         group, in, group.rank() == root ? layout : RowLayout(), root);
                   },
                   [](const Tensors& in) { return each_its_rows(in.back(), ranks_of(in)); }});
}

void add_exchanges(std::vector<TorchCall>& calls) {
  calls.push_back(
      {"all_to_all_rows", 1,
       [](int rank, int ranks) {
         return std::vector<std::int64_t>{RowLayout(sent_by(rank, ranks)).total(), columns};
       },
       [](ProcessGroup& group, const at::Tensor& in) {
         RowLayout received;
         auto out = libtorch::all_to_all_rows(group, in, sent_by(group.rank(), group.size()), {},
                                              {}, &received);
         EXPECT_EQ(received, RowLayout(received_by(group.rank(), group.size())));
         return out;
       },
       [](const Tensors& in) {
         const int ranks = ranks_of(in);
         Tensors all;
         for (int to = 0; to < ranks; ++to) {
           Tensors blocks;
           for (int from = 0; from < ranks; ++from)
             blocks.push_back(
                 rows_of(in[static_cast<std::size_t>(from)], RowLayout(sent_by(from, ranks)), to));
           all.push_back(at::cat(blocks));
         }
         return all;
       }});
  calls.push_back({"permute", 1, same_sizes,
                   [](ProcessGroup& group, const at::Tensor& in) {
                     std::vector<int> to;
                     for (int rank = 0; rank < group.size(); ++rank)
                       to.push_back((rank + 1) % group.size());
                     return libtorch::permute(group, in, to);
                   },
                   [](const Tensors& in) {
                     Tensors all(in.size());
                     for (std::size_t rank = 0; rank < in.size(); ++rank)
                       all[(rank + 1) % in.size()] = in[rank];
                     return all;
                   }});
  // Rank 0 sends to the last rank; the other ranks do nothing.
  calls.push_back({"send_and_recv", 2, same_sizes,
                   [](ProcessGroup& group, const at::Tensor& in) {
                     const int last = group.size() - 1;
                     if (group.rank() == 0) return libtorch::send(group, in, last, 7);
                     if (group.rank() == last)
                       return libtorch::recv(group, in.sizes(), in.scalar_type(), 0, 7, in);
                     return in * 1;
                   },
                   [](const Tensors& in) {
                     Tensors all = in;
                     all.front() = at::empty({0}, in[0].options());
                     all.back() = in.front();
                     return all;
                   }});
}

}  // namespace

std::vector<World> worlds_of_adapters() {
  std::vector<World> some;
  for (const World& world : worlds())
    if (world.checked == (world.size == 3) &&
        (world.backend == "local" || world.backend == "shm" || world.backend == "gloo"))
      some.push_back(world);
  return some;
}

std::vector<TorchCall> torch_calls() {
  std::vector<TorchCall> calls;
  add_all_reduces(calls);
  add_gathers(calls);
  add_rooted(calls);
  add_exchanges(calls);
  return calls;
}

at::Tensor pattern(at::IntArrayRef sizes, int seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return ((at::arange(count, at::kDouble) * 5 + 3 * seed).remainder(7) - 3).div(4).view(sizes);
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor difference = (actual.to(expected.device()) - expected).abs();
  if (difference.numel() == 0) return;
  // Sums of a few dozen products of numbers around 1 in another order.
  EXPECT_LE(difference.max().item<double>(), 1e-12)
      << what << ": " << actual << "\nexpected: " << expected;
}

at::Tensor leaf(const at::Tensor& values) {
  at::Tensor x = values.detach().clone();
  x.set_requires_grad(true);
  return x;
}

at::Tensor loss_of(const at::Tensor& out, int rank) {
  return (pattern(out.sizes(), rank + 1).to(out.device()) * out * out).sum();
}
namespace {
// A loss of a gradient; its gradient is a second derivative.
at::Tensor penalty_of(const at::Tensor& gradient, int rank) {
  return (pattern(gradient.sizes(), rank + 2).to(gradient.device()) * gradient * gradient).sum();
}

at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& x) {
  return gradient.defined() ? gradient : at::zeros_like(x);
}

at::Tensor sum_over_ranks(const Tensors& of_ranks,
                          at::Tensor (*scalar)(const at::Tensor& x, int rank)) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    sum = sum + scalar(of_ranks[rank], static_cast<int>(rank));
  return sum;
}
}  // namespace

Derivatives derivatives_at_once(const TorchCall& call, const Tensors& inputs) {
  Tensors xs;
  for (const at::Tensor& input : inputs) xs.push_back(leaf(input));
  Derivatives d;
  d.out = call.at_once(xs);
  d.first = torch::autograd::grad({sum_over_ranks(d.out, loss_of)}, xs, {}, true, true, true);
  for (std::size_t rank = 0; rank < xs.size(); ++rank)
    d.first[rank] = or_zeros(d.first[rank], xs[rank]);
  at::Tensor penalty = sum_over_ranks(d.first, penalty_of);
  for (const at::Tensor& x : xs) penalty = penalty + x.sum() * 0;  // Where the value is constant.
  d.second = torch::autograd::grad({penalty}, xs, {}, false, false, true);
  for (std::size_t rank = 0; rank < xs.size(); ++rank)
    d.second[rank] = or_zeros(d.second[rank], xs[rank]);
  return d;
}

Tensors inputs_of(const TorchCall& call, int ranks) {
  Tensors inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(pattern(call.sizes(rank, ranks), rank));
  return inputs;
}

void expect_equals_one_process(const TorchCall& call, ProcessGroup& group, const Tensors& inputs,
                               const Derivatives& expected, c10::Device device) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const at::Tensor x = leaf(inputs[rank].to(device));
  const at::Tensor out = call.on_ranks(group, x);
  EXPECT_EQ(out.device(), device);
  expect_near(out, expected.out[rank], "value");
  const at::Tensor loss = loss_of(out, group.rank());
  const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  expect_near(first, expected.first[rank], "gradient");
  penalty_of(first, group.rank()).backward();
  expect_near(x.grad(), expected.second[rank], "second derivative");
  // backward() alone has paths of its own: saved weights, calls that record nothing.
  const at::Tensor alone = leaf(x);
  loss_of(call.on_ranks(group, alone), group.rank()).backward();
  expect_near(or_zeros(alone.grad(), alone), expected.first[rank], "gradient");
  EXPECT_FALSE(alone.grad().requires_grad());
}

}  // namespace tutti::test
