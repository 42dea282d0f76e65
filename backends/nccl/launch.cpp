#include "launch.hpp"

#include <algorithm>
#include <utility>

namespace tutti::backend::nccl {

Launch::Launch(const Place& place, std::shared_ptr<Communicator> communicator,
               std::span<const Op> ops, std::shared_ptr<EventState> state, Gpu::Turn turn)
    : place_(place),
      communicator_(std::move(communicator)),
      state_(std::move(state)),
      turn_(std::move(turn)),
      messages_(place) {
  std::size_t listed = 0;
  for (const auto& op : ops) listed += op.rows.list().size() + op.send_rows.list().size();
  rows_.reserve(listed);  // The spans below point into it: no growth from here on.
  const auto keep = [this](Rows& rows) {
    if (!rows.listed()) return;
    const auto from = rows_.size();
    rows_.insert(rows_.end(), rows.list().begin(), rows.list().end());
    rows = Rows(std::span<const std::int64_t>(rows_).subspan(from));
  };
  lowered_.reserve(ops.size());
  for (Op op : ops) {
    if (is_point_to_point(op.kind)) {
      messages_.add(op);
      continue;
    }
    keep(op.rows);
    keep(op.send_rows);
    lowered_.emplace_back(place_, op, state_->call().order_fixed);
    groups_ = std::max(groups_, lowered_.back().groups());
  }
  const DeviceScope scope(place_.gpu.cuda(), place_.gpu.index());
  auto inputs = place_.gpu.event();
  inputs.record(to_cuda(state_->call().stream));
  inputs.hold(place_.stream);
}

void Launch::begin_group() {
  const int group = begun_++;
  communicator_->use([&](ncclComm_t comm) {
    for (auto& op : lowered_) op.before(group, comm);
    if (group == 0) messages_.copy_own();
    GroupScope together(place_.gpu.nccl());
    for (auto& op : lowered_) op.inside(group, comm);
    if (group == 0) messages_.inside(comm);
    together.end();
  });
}

bool Launch::advance() {
  const DeviceScope scope(place_.gpu.cuda(), place_.gpu.index());
  if (begun_ == 0) begin_group();
  for (;;) {
    if (!communicator_->ready()) return false;
    if (begun_ == groups_) break;
    begin_group();
  }
  communicator_->use([&](ncclComm_t comm) {
    for (auto& op : lowered_) op.after(comm);
  });
  auto behind = place_.gpu.event();
  behind.record(place_.stream);
  state_->queued(std::move(behind));
  return true;
}

}  // namespace tutti::backend::nccl
