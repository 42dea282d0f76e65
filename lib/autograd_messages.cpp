#include <tutti/autograd_messages.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "internal/autograd_call.hpp"
#include "internal/gather_algo.hpp"

namespace tutti::autograd {
namespace {

using internal::AutogradCheck;
using internal::make_or_tell;
using internal::no_array;

/// Of the messages of permute(); callers have the others.
constexpr int permute_tag = INT32_MAX - 2;

/// What `peer` sends, of this shape and dtype.
Tensor receive(ProcessGroup& group, const PairContext& from, const CallOptions& options) {
  Tensor out;
  make_or_tell([&] { out = Tensor(group.memory(), from.shape, from.dtype, options.stream); },
               [&] { group.recv(no_array(from.shape, from.dtype), from.peer, from.tag, options); });
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
        check.gradient(array, context.shape, context.dtype);
        out = Tensor(group.memory(), context.shape, context.dtype, options.stream);
      },
      [&] {
        if (to == group.rank()) return;
        const auto none = no_array(context.shape, context.dtype);
        make_or_tell([&] { group.send(none, to, permute_tag, options); },
                     [&] { group.recv(none, from, permute_tag, options); });
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
  AutogradCheck(group, "send").dtype(in.dtype);
  group.send(in, peer, tag, options);
  return {peer, tag, in.shape, in.dtype};
}

Value send_vjp(ProcessGroup& group, const PairContext& context, const CallOptions& options) {
  return receive(group, context, options);
}

Received recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag,
              const CallOptions& options) {
  AutogradCheck(group, "recv").dtype(dtype);
  const PairContext context{peer, tag, shape, dtype};
  return {receive(group, context, options), context};
}

void recv_vjp(ProcessGroup& group, const PairContext& context, const ConstTensorView& grad_out,
              const CallOptions& options) {
  make_or_tell(
      [&] { AutogradCheck(group, "recv_vjp").gradient(grad_out, context.shape, context.dtype); },
      [&] {
        group.send(no_array(context.shape, context.dtype), context.peer, context.tag, options);
      });
  group.send(grad_out, context.peer, context.tag, options);
}

Permuted permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                 const CallOptions& options) {
  const AutogradCheck check(group, "permute");
  check.dtype(in.dtype);
  check_permutation(check, to, group.size());
  PermuteContext context{{to.begin(), to.end()}, in.shape, in.dtype};
  if (group.size() == 1) {
    check.array(in);
    return {Value(in), std::move(context)};
  }
  auto out = permuted(group, check, in, context, options);
  return {std::move(out), std::move(context)};
}

Value permute_vjp(ProcessGroup& group, const PermuteContext& context,
                  const ConstTensorView& grad_out, const CallOptions& options) {
  const AutogradCheck check(group, "permute_vjp");
  if (group.size() == 1) {
    check.gradient(grad_out, context.shape, context.dtype);
    return Value(grad_out);
  }
  return permuted(group, check, grad_out, {inverse_of(context.to), context.shape, context.dtype},
                  options);
}

}  // namespace autograd
}  // namespace tutti
