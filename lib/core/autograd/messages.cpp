#include <tutti/autograd.hpp>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "autograd/step.hpp"
#include "rows/row_views.hpp"

// Messages from one rank to another. receive() is the transpose of deliver().

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {
namespace {

using internal::Step;

/// The tag of the messages of permute(). A program must not use it; this is not checked.
constexpr int permute_tag = INT32_MAX - 2;

struct Channel {
  int peer;
  int tag;
};

Differentiable receive(const Step& step, const ConstTensorView& what, const Channel& from);

/// Sends `in`. The result is an empty array.
Differentiable deliver(const Step& step, const ConstTensorView& in, const Channel& to) {
  Tensor none;
  const Op sending{.kind = Operation::send, .in = in, .peer = to.peer, .tag = to.tag};
  step.call(sending, [&](Op&) {
    step.check_input(in);
    none = step.make({0}, in.dtype);
  });
  return step.result<receive>("recv", in, std::move(none), to);
}

/// Receives an array: the transpose of deliver(). `what` has the shape and dtype of the forward's
/// result, without data.
Differentiable receive(const Step& step, const ConstTensorView& what, const Channel& from) {
  const auto dtype = step.input_dtype(what);
  Tensor out;
  step.call({.kind = Operation::recv, .peer = from.peer, .tag = from.tag}, [&](Op& call) {
    step.check_dtype(dtype);
    out = step.make_result(what.shape, dtype);
    call.out = out;
  });
  return step.result<deliver>("send", {}, std::move(out), from);
}

void check_permutation(const Step& step, std::span<const int> to) {
  const int size = step.group.size();
  std::vector<int> sorted(to.begin(), to.end());
  std::ranges::sort(sorted);
  bool every = std::ssize(sorted) == size;
  for (int r = 0; every && r < size; ++r) every = sorted[static_cast<std::size_t>(r)] == r;
  if (!every)
    step.refuse(Errc::invalid_argument,
                fmt::format("to is {{{}}}; it has to name each of the ranks 0 to {} once",
                            fmt::join(to, ", "), size - 1));
}

/// Sends `in` to rank to[rank]. The transpose is the inverse permutation.
Differentiable permuted(const Step& step, const ConstTensorView& in, const std::vector<int>& to) {
  auto& group = step.group;
  const int rank = group.rank();
  std::vector<int> from(to.size());
  for (std::size_t r = 0; r < to.size(); ++r)
    from[static_cast<std::size_t>(to[r])] = static_cast<int>(r);
  const int receiver = to[static_cast<std::size_t>(rank)];
  const int sender = from[static_cast<std::size_t>(rank)];
  Tensor out;
  const auto refused = internal::refusal_of([&] {
    step.check_input(in);
    out = step.make(in.shape, in.dtype);
  });
  if (refused) {
    const Error why(Errc::invalid_argument, "see that rank's error");
    const auto refuse = [&](Operation kind, int peer) {
      if (peer == rank) return;
      (void)internal::refusal_of([&] {
        step.call({.kind = kind, .peer = peer, .tag = permute_tag}, [&](Op&) { throw Error(why); });
      });
    };
    refuse(Operation::send, receiver);
    refuse(Operation::recv, sender);
    throw Error(*refused);
  }
  if (receiver == rank) {
    internal::copy_rows(group, out.data(), in.data, in.bytes(), step.options.stream);
  } else {
    std::array<Work, 2> works{group.recv_async(out, sender, permute_tag, step.options),
                              group.send_async(in, receiver, permute_tag, step.options)};
    Work::all(works).wait();
  }
  return step.result<permuted>("permute", in, std::move(out), from);
}

}  // namespace

Differentiable send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag,
                    const CallOptions& options) {
  return deliver({group, "send", options}, in, {peer, tag});
}

Differentiable recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag,
                    const CallOptions& options) {
  if (peer == any_peer)
    tutti::fail(Errc::invalid_argument,
                "recv: peer is any_peer, but the gradient goes back to one rank; name it");
  return receive({group, "recv", options}, {nullptr, dtype, shape}, {peer, tag});
}

Differentiable permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                       const CallOptions& options) {
  const Step step{group, "permute", options};
  check_permutation(step, to);
  return permuted(step, in, {to.begin(), to.end()});
}

}  // namespace autograd
}  // namespace tutti
