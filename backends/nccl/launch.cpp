#include "launch.hpp"

#include <algorithm>
#include <utility>

#include "backend/row_lists.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {

void Messages::add(const Op& op) {
  if (op.peer != context_.rank)
    others_.push_back(op);
  else if (op.kind == Operation::send)
    own_in_.push_back(op.in);
  else
    own_out_.push_back(op.out);
}

void Messages::copy_own() const {
  if (own_in_.size() != own_out_.size())
    internal::failf(
        Errc::mismatch,
        "this rank sends {} messages to itself and receives {}; the numbers must be equal",
        own_in_.size(), own_out_.size());
  for (std::size_t i = 0; i < own_in_.size(); ++i) {
    if (own_in_[i].bytes() != own_out_[i].bytes())
      internal::failf(Errc::mismatch,
                      "this rank sends {} bytes to itself and receives {}; the sizes must be equal",
                      own_in_[i].bytes(), own_out_[i].bytes());
    context_.copy(own_out_[i].data, own_in_[i].data, own_in_[i].bytes());
  }
}

void Messages::inside(ncclComm_t comm) const {
  for (const auto& op : others_)
    if (op.kind == Operation::send)
      context_.send(op.in.data, op.in.bytes(), op.peer, comm);
    else
      context_.recv(op.out.data, op.out.bytes(), op.peer, comm);
}

Launch::Launch(const OpContext& context, std::shared_ptr<Communicator> communicator,
               std::span<const Op> ops, std::shared_ptr<EventState> state, Gpu::Turn turn,
               Counting& counting)
    : context_(context),
      communicator_(std::move(communicator)),
      state_(std::move(state)),
      turn_(std::move(turn)),
      counting_(counting),
      messages_(context_) {
  internal::reserve_row_lists(ops, rows_);
  lowered_.reserve(ops.size());
  for (Op op : ops) {
    if (is_point_to_point(op.kind)) {
      messages_.add(op);
      continue;
    }
    if (op.kind == Operation::all_gather_bounded) {
      bounded_.emplace_back(context_, op, counting_.room());
      continue;
    }
    internal::copy_row_lists(op, rows_);
    lowered_.emplace_back(context_, op, state_->call().order_fixed);
    groups_ = std::max(groups_, lowered_.back().groups());
  }
  if (context_.stream == to_cuda(state_->call().stream)) return;
  const DeviceScope scope(context_.gpu.cuda(), context_.gpu.index());
  auto inputs = context_.gpu.event();
  inputs.record(to_cuda(state_->call().stream));
  inputs.block(context_.stream);
}

void Launch::begin_group() {
  const int group = begun_++;
  communicator_->use([&](ncclComm_t comm) {
    for (auto& op : lowered_) op.before(group, comm);
    if (group == 0) {
      messages_.copy_own();
      for (auto& op : bounded_) op.before();
    }
    std::optional<GroupScope> together;
    if (context_.size > 1 || std::ranges::any_of(lowered_, &Lowering::needs_nccl))
      together.emplace(context_.gpu.nccl());
    for (auto& op : lowered_) op.inside(group, comm);
    if (group == 0) {
      messages_.inside(comm);
      for (const auto& op : bounded_) op.inside(comm);
    }
    if (together) together->end();
  });
}

bool Launch::advance() {
  const DeviceScope scope(context_.gpu.cuda(), context_.gpu.index());
  if (begun_ == 0) begin_group();
  for (;;) {
    if (!communicator_->ready()) return false;
    if (begun_ == groups_) break;
    begin_group();
  }
  communicator_->use([&](ncclComm_t comm) {
    for (auto& op : lowered_) op.after(comm);
    for (auto& op : bounded_) op.after();
  });
  lowered_.clear();  // Frees the call's memory in stream order, in a graph too.
  if (!bounded_.empty()) {
    counting_.add(state_, std::move(bounded_));
    return true;
  }
  auto behind = context_.gpu.event();
  behind.record(context_.stream);
  state_->queued(std::move(behind));
  return true;
}

}  // namespace tutti::backend::nccl
