#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tutti/adapters/torch.hpp>
#include <tutti/adapters/torch_collective.hpp>

// What <tutti/adapters/torch.hpp> declares: the calls whose ranks have different parts: a root, a
// peer, a block for each.

namespace tutti::libtorch {

inline at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root, ReduceOp op,
                         const CallOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    auto done = autograd::reduce(group, view(x), root, op, options);
    const bool is_root = group.rank() == root;
    return {is_root ? detail::result(std::move(done.out), x) : at::empty({0}, x.options()),
            [&group, root, op, is_root, sizes = x.sizes().vec()](const at::Tensor& g,
                                                                 const detail::List&) {
              const at::Tensor whole = is_root ? g : detail::zeros_after(g, sizes);
              return detail::scaled(broadcast(group, whole, root), op, group);
            }};
  });
}

inline at::Tensor broadcast(ProcessGroup& group, const at::Tensor& in, int root,
                            const CallOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    auto done = autograd::broadcast(group, view(x), root, options);
    return {detail::result(std::move(done.out), x),
            [&group, root, sizes = x.sizes().vec()](const at::Tensor& g, const detail::List&) {
              const at::Tensor sum = reduce(group, g, root);
              return group.rank() == root ? sum : detail::zeros_after(sum, sizes);
            }};
  });
}

inline at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& local, int root,
                              const GatherOptions& options) {
  return detail::record(local, [&](const at::Tensor& in) -> detail::Step {
    auto done = autograd::gather_rows(group, view(in), root, detail::here(options));
    const bool is_root = group.rank() == root;
    return {
        is_root ? detail::result(std::move(done.out), in) : at::empty({0}, in.options()),
        [&group, root, is_root, options = detail::later(options, nullptr),
         layout = std::move(done.context.layout),
         sizes = in.sizes().vec()](const at::Tensor& g, const detail::List&) {
          return scatter_rows(group, g, is_root ? &layout : nullptr, root, options).reshape(sizes);
        }};
  });
}

inline at::Tensor scatter_rows(ProcessGroup& group, const at::Tensor& whole,
                               const RowLayout* layout, int root, const GatherOptions& options) {
  const at::Tensor given = whole.defined() ? whole : at::empty({0});
  return detail::record(given, [&](const at::Tensor& in) -> detail::Step {
    auto done = autograd::scatter_rows(group, view(in), layout, root, detail::here(options));
    return {detail::result(std::move(done.out), in),
            [&group, root, options = detail::later(options, nullptr), sizes = in.sizes().vec()](
                const at::Tensor& g, const detail::List&) {
              const at::Tensor all = gather_rows(group, g, root, options);
              return group.rank() == root ? all.reshape(sizes) : detail::zeros_after(all, sizes);
            }};
  });
}

inline at::Tensor all_to_all_rows(ProcessGroup& group, const at::Tensor& in,
                                  std::span<const std::int64_t> send_rows,
                                  std::span<const std::int64_t> recv_rows,
                                  const GatherOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    auto done =
        autograd::all_to_all_rows(group, view(x), send_rows, recv_rows, detail::here(options));
    return {detail::result(std::move(done.out), x),
            [&group, options = detail::later(options, nullptr), context = std::move(done.context),
             sizes = x.sizes().vec()](const at::Tensor& g, const detail::List&) {
              return all_to_all_rows(group, g, context.recv_rows, context.send_rows, options)
                  .reshape(sizes);
            }};
  });
}

inline at::Tensor permute(ProcessGroup& group, const at::Tensor& in, std::span<const int> to,
                          const CallOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    auto done = autograd::permute(group, view(x), to, options);
    std::vector<int> back(done.context.to.size());
    for (std::size_t rank = 0; rank < back.size(); ++rank)
      back[static_cast<std::size_t>(done.context.to[rank])] = static_cast<int>(rank);
    return {detail::result(std::move(done.out), x),
            [&group, back = std::move(back)](const at::Tensor& g, const detail::List&) {
              return permute(group, g, back);
            }};
  });
}

inline at::Tensor send(ProcessGroup& group, const at::Tensor& in, int peer, int tag,
                       const CallOptions& options) {
  return detail::record(in, [&](const at::Tensor& x) -> detail::Step {
    autograd::send(group, view(x), peer, tag, options);
    return {at::empty({0}, x.options()),
            [&group, peer, tag, type = x.scalar_type(), sizes = x.sizes().vec()](
                const at::Tensor& g, const detail::List&) {
              return recv(group, sizes, type, peer, tag, g);
            }};
  });
}

inline at::Tensor recv(ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType dtype, int peer,
                       int tag, const at::Tensor& after, const CallOptions& options) {
  const at::Tensor given = after.defined() ? after : at::empty({0});
  return detail::record(given, [&](const at::Tensor& x) -> detail::Step {
    const Shape shape(std::span<const std::int64_t>(sizes.data(), sizes.size()));
    auto done = autograd::recv(group, shape, from_torch(dtype), peer, tag, options);
    return {to_torch(std::move(done.out)), [&group, peer, tag, of_after = x.sizes().vec()](
                                               const at::Tensor& g, const detail::List&) {
              return detail::zeros_after(send(group, g, peer, tag), of_after);
            }};
  });
}

}  // namespace tutti::libtorch
