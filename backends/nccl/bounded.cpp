#include "bounded.hpp"

#include <algorithm>

#include "backend/record.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {

Bounded::Bounded(const OpContext& context, const Op& op, cuda::PinnedPool::Block counts)
    : context_(context),
      op_(op),
      most_(op.rows[context.rank]),
      row_bytes_(op.out.row_bytes()),
      slot_(aligned(static_cast<std::size_t>(most_) * row_bytes_)),
      counts_(std::move(counts)) {
  op_.rows = {};
}

std::byte* Bounded::slots() const noexcept {
  return scratch_.data() + aligned(all_counts().size_bytes());
}

void Bounded::before() {
  if (slot_ == 0) return;
  const auto me = static_cast<std::size_t>(context_.rank);
  const auto ranks = static_cast<std::size_t>(context_.size);
  scratch_ = Scratch(context_, aligned(all_counts().size_bytes()) + ranks * slot_);
  *own_count() = op_.in.shape.rows();
  std::ranges::fill(all_counts(), std::int64_t{-1});
  context_.copy(reinterpret_cast<std::int64_t*>(scratch_.data()) + me, own_count(),
                sizeof(std::int64_t), cudaMemcpyHostToDevice);
  context_.copy(slots() + me * slot_, op_.in.data, op_.in.bytes());
}

void Bounded::inside(ncclComm_t comm) const {
  if (slot_ == 0 || context_.size == 1) return;
  const auto& nccl = context_.gpu.nccl();
  const auto gather = [&](std::byte* all, std::size_t bytes) {
    check(nccl,
          nccl.all_gather(all + static_cast<std::size_t>(context_.rank) * bytes, all, bytes,
                          ncclUint8, comm, context_.stream),
          "ncclAllGather");
  };
  gather(scratch_.data(), sizeof(std::int64_t));
  gather(slots(), slot_);
}

void Bounded::after() {
  if (slot_ != 0)
    context_.copy(all_counts().data(), scratch_.data(), all_counts().size_bytes(),
                  cudaMemcpyDeviceToHost);
  counts_.busy_on(context_.gpu, context_.stream);
}

void Bounded::spread(cudaStream_t stream) {
  if (slot_ == 0) return;
  const auto counts = all_counts();
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] < 0 || counts[r] > most_)
      internal::failf(Errc::mismatch, "rank {} has {} rows; this rank has room for {} of each rank",
                      r, counts[r], most_);
  scratch_.last_used_on(stream);
  context_.stream = stream;
  counts_.busy()->block(stream);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    auto* const to =
        static_cast<std::byte*>(op_.out.data) + r * static_cast<std::size_t>(most_) * row_bytes_;
    const bool in_place = to == op_.in.data;
    if (!in_place)
      context_.copy(to, slots() + r * slot_, static_cast<std::size_t>(counts[r]) * row_bytes_);
  }
}

Counting::Counting(std::shared_ptr<Gpu> gpu, int size)
    : gpu_(std::move(gpu)),
      pool_(cuda::pinned_pool(gpu_->cuda(), gpu_->index())),
      size_(size),
      copies_(gpu_) {}

void Counting::reserve() {
  const std::lock_guard lock(mutex_);
  idle_.push_back(pool_->take(Bounded::counts_bytes(size_)));
}

cuda::PinnedPool::Block Counting::room() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto found = std::move(idle_.back());
      idle_.pop_back();
      return found;
    }
  }
  return pool_->take(Bounded::counts_bytes(size_));
}

void Counting::add(std::shared_ptr<EventState> state, std::vector<Bounded> ops) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(state), std::move(ops)});
}

bool Counting::spread(const std::string& group, int rank) {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && waiting_.front().ops.back().counted()) {
    auto& next = waiting_.front();
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    try {
      for (auto& op : next.ops) op.spread(copies_.get());
    } catch (const Error& error) {
      throw internal::call_error(error.code(), group, {&next.state->op(), 1}, next.state->call(),
                                 rank, error.message());
    }
    auto behind = gpu_->event();
    behind.record(copies_.get());
    next.state->queued(std::move(behind));
    for (auto& op : next.ops) idle_.push_back(std::move(op).take_counts());
    waiting_.pop_front();
  }
  return waiting_.empty();
}

void Counting::forget() noexcept {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
}

}  // namespace tutti::backend::nccl
