#pragma once

#include <span>
#include <vector>

#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

// Differentiable messages from one rank to another; autograd.hpp says what holds for all.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

/// The vjp of a send receives its gradient, that of a receive sends it, with the same tag. Call
/// vjps in the reverse order of the forwards, or ranks wait for each other. In a group of one rank
/// too these are messages.
struct PairContext {
  int peer = 0;
  int tag = 0;
  Shape shape{};
  DType dtype = DType::f32;
};
PairContext send(ProcessGroup& group, const ConstTensorView& in, int peer, int tag = 0,
                 const CallOptions& options = {});
MaybeOwned send_vjp(ProcessGroup& group, const PairContext& context,
                    const CallOptions& options = {});
struct Received {
  MaybeOwned out;
  PairContext context;
};
Received recv(ProcessGroup& group, const Shape& shape, DType dtype, int peer, int tag = 0,
              const CallOptions& options = {});
void recv_vjp(ProcessGroup& group, const PairContext& context, const ConstTensorView& grad_out,
              const CallOptions& options = {});

/// Rank r's array [...], of the same shape everywhere, goes to rank to[r]; `to` is a permutation,
/// the same on every rank. The vjp is the inverse permutation. Messages with a tag of their own.
struct PermuteContext {
  std::vector<int> to;
  Shape shape{};
  DType dtype = DType::f32;
};
struct Permuted {
  MaybeOwned out;
  PermuteContext context;
};
Permuted permute(ProcessGroup& group, const ConstTensorView& in, std::span<const int> to,
                 const CallOptions& options = {});
MaybeOwned permute_vjp(ProcessGroup& group, const PermuteContext& context,
                       const ConstTensorView& grad_out, const CallOptions& options = {});

}  // namespace autograd
}  // namespace tutti
