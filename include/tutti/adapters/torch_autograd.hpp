#pragma once

#include <cstdint>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <tutti/adapters/torch.hpp>
#include <tutti/adapters/torch_collective.hpp>

// What <tutti/adapters/torch.hpp> declares: the calls in which all ranks have the same part.

namespace tutti::libtorch {

inline at::Tensor all_gather_rows(ProcessGroup& group, const at::Tensor& local, GatherGrad grad,
                                  const GatherOptions& options) {
  return detail::record(local, [&](const at::Tensor& in) -> detail::Step {
    auto done = autograd::all_gather_rows(group, view(in), grad, detail::here(options));
    return {
        detail::result(std::move(done.out), in),
        [&group, options = detail::later(options, nullptr), context = std::move(done.context),
         sizes = in.sizes().vec()](const at::Tensor& g, const detail::List&) {
          const RowLayout& layout = context.layout;
          if (context.grad == GatherGrad::local_slice)
            return g.narrow(0, layout.offset(group.rank()), layout[group.rank()]).reshape(sizes);
          const ReduceOp op = context.grad == GatherGrad::mean ? ReduceOp::avg : ReduceOp::sum;
          return reduce_scatter_rows(group, g, layout, op, options).reshape(sizes);
        }};
  });
}

inline at::Tensor reduce_scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                                      const RowLayout& layout, ReduceOp op,
                                      const GatherOptions& options) {
  return detail::record(whole, [&](const at::Tensor& in) -> detail::Step {
    auto done = autograd::reduce_scatter_rows(group, view(in), layout, op, detail::here(options));
    return {detail::result(std::move(done.out), in),
            [&group, op, options = detail::later(options, nullptr), layout](const at::Tensor& g,
                                                                            const detail::List&) {
              const GatherOptions known = detail::later(options, &layout);
              return detail::scaled(all_gather_rows(group, g, GatherGrad::sum, known), op, group);
            }};
  });
}

inline at::Tensor all_reduce(ProcessGroup& group, const at::Tensor& in, ReduceOp op,
                             const CallOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    auto done = autograd::all_reduce(group, view(x), op, options);
    detail::List saved;
    if (done.context.weights.data() != nullptr)
      saved = {to_torch(std::move(done.context.weights)), in};
    return {detail::result(std::move(done.out), x),
            [&group, op](const at::Tensor& g, const detail::List& kept) {
              const at::Tensor sum = all_reduce(group, g);
              if (kept.empty()) return detail::scaled(sum, op, group);
              // The weights of min and max are steps; those of a product vary with the factors.
              if (op.kind == ReduceOp::Kind::product && c10::GradMode::is_enabled())
                return sum * product_of_others(group, kept[1]);
              return sum * kept[0];
            },
            std::move(saved)};
  });
}

inline at::Tensor product_of_others(ProcessGroup& group, const at::Tensor& in,
                                    const CallOptions& options) {
  const RowLayout layout = RowLayout::equal(group.size(), 1);
  const at::Tensor all = all_gather_rows(group, in.unsqueeze(0), GatherGrad::sum,
                                         {.layout = &layout, .call = options});
  const std::int64_t rank = group.rank();
  return at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, group.size() - 1 - rank)})
      .prod(0);
}

}  // namespace tutti::libtorch
