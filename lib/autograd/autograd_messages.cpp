#include <tutti/autograd_messages.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "autograd/call.hpp"
#include "group/refuse.hpp"
#include "rows/gather_algo.hpp"

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::make_or_refuse;
using internal::make_or_tell;
using internal::refuse_call;

/// Of the messages of permute(); callers have the others.
constexpr int permute_tag = INT32_MAX - 2;

/// What `peer` sends, of this shape and dtype.
Tensor receive(ProcessGroup& group, std::string_view function, const PairContext& from,
               const CallOptions& options) {
  Tensor out;
  make_or_refuse(group, {.kind = Operation::recv, .peer = from.peer, .tag = from.tag}, options,
                 [&] {
                   AutogradCheck(group, function).dtype(from.dtype);
                   out = Tensor(group.memory(), from.shape, from.dtype, options.stream);
                 });
  group.recv(out, from.peer, from.tag, options);
  return out;
}

std::vector<int> inverse_of(std::span<const int> to) {
  std::vector<int> from(to.size());
  for (std::size_t r = 0; r < to.size(); ++r)
    from[static_cast<std::size_t>(to[r])] = static_cast<int>(r);
  return from;
}

void check_permutation(const AutogradCheck& check, std::span<const int> to, int size) {
  std::vector<int> sorted(to.begin(), to.end());
  std::ranges::sort(sorted);
  bool every = std::ssize(sorted) == size;
  for (int r = 0; every && r < size; ++r) every = sorted[static_cast<std::size_t>(r)] == r;
  if (!every)
    check.refuse(Errc::invalid_argument,
                 fmt::format("to is {{{}}}; it has to name each of the ranks 0 to {} once",
                             fmt::join(to, ", "), size - 1));
}

/// `array`, which is of this shape and dtype, to rank to[rank].
Tensor permuted(ProcessGroup& group, const AutogradCheck& check, const ConstTensorView& array,
                const PermuteContext& context, const CallOptions& options) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const int to = context.to[rank];
  const int from = inverse_of(context.to)[rank];
  Tensor out;
  make_or_tell(
      [&] {
        check.dtype(context.dtype);
        check.gradient(array, context.shape, context.dtype);
        out = Tensor(group.memory(), context.shape, context.dtype, options.stream);
      },
      [&] {
        if (to == group.rank()) return;
        const Error why(Errc::invalid_argument, "see that rank's error");
        make_or_tell(
            [&] {
              refuse_call(group, {.kind = Operation::send, .peer = to, .tag = permute_tag}, why,
                          options);
            },
            [&] {
              refuse_call(group, {.kind = Operation::recv, .peer = from, .tag = permute_tag}, why,
                          options);
            });
      });
  if (to == group.rank()) {
    internal::copy_rows(group, out.data(), array.data, array.bytes(), options.stream);
    return out;
  }
  std::array<Work, 2> works{group.recv_async(out, from, permute_tag, options),
                            group.send_async(array, to, permute_tag, options)};
  Work::all(works).wait();
  return out;
}

}  // namespace
}  // namespace tutti::autograd

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

PairContext send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag,
                 const CallOptions& options) {
  make_or_refuse(group, {.kind = Operation::send, .peer = peer, .tag = tag}, options,
                 [&] { AutogradCheck(group, "send").dtype(in.dtype); });
  group.send(in, peer, tag, options);
  return {peer, tag, in.shape, in.dtype};
}

MaybeOwned send_vjp(ProcessGroup& group, const PairContext& context, const CallOptions& options) {
  return receive(group, "send_vjp", context, options);
}

Received recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag,
              const CallOptions& options) {
  const PairContext context{peer, tag, shape, dtype};
  return {receive(group, "recv", context, options), context};
}

void recv_vjp(ProcessGroup& group, const PairContext& context, const ConstTensorView& grad_out,
              const CallOptions& options) {
  make_or_refuse(
      group, {.kind = Operation::send, .peer = context.peer, .tag = context.tag}, options,
      [&] { AutogradCheck(group, "recv_vjp").gradient(grad_out, context.shape, context.dtype); });
  group.send(grad_out, context.peer, context.tag, options);
}

Permuted permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                 const CallOptions& options) {
  const AutogradCheck check(group, "permute");
  check_permutation(check, to, group.size());
  PermuteContext context{{to.begin(), to.end()}, in.shape, in.dtype};
  if (group.size() == 1) {
    check.dtype(in.dtype);
    check.array(in);
    return {MaybeOwned(in), std::move(context)};
  }
  auto out = permuted(group, check, in, context, options);
  return {std::move(out), std::move(context)};
}

MaybeOwned permute_vjp(ProcessGroup& group, const PermuteContext& context,
                       const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "permute_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return MaybeOwned(grad_out);
  }
  return permuted(group, check, grad_out, {inverse_of(context.to), context.shape, context.dtype},
                  options);
}

}  // namespace autograd
}  // namespace tutti
