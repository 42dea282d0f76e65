#include "bench/calls.hpp"

#include <utility>

#include <tutti/coalesce.hpp>

#include "bench/staging.hpp"

namespace tutti::tool {
namespace {

/// An upper bound, with a wide margin, of the time that a rank takes to fill and check its arrays.
std::chrono::nanoseconds preparation(const Cell& cell, std::size_t copies) {
  const double values = static_cast<double>(cell.count) * cell.ranks * static_cast<double>(copies);
  return Deadline::saturate(std::chrono::duration<double, std::nano>(100 * values));
}

}  // namespace

Calls::Calls(Rank& rank, const Block& block, const Cell& cell, std::span<const Buffers> sets,
             const Timing& timing)
    : group_(rank.group),
      position_(rank.position),
      collective_(*block.collective),
      timing_(timing),
      cell_(cell),
      how_{cell_,
           block.op == ReduceOp::Kind::premul_sum
               ? ReduceOp::premul(Pattern::scale_of(cell.rank))
               : ReduceOp{block.op.value_or(ReduceOp::Kind::sum)},
           {.integer_avg = true},
           &rank.options,
           &made_},
      sets_(sets),
      data_(group_.memory(), block, cell, timing.seed, timing.check == Check::all),
      patience_(Deadline::saturate(std::chrono::duration<double, std::nano>(timing.timeout) +
                                   preparation(cell, sets.size()))),
      each_checked_(timing.check == Check::all && collective_.moves_data()),
      // A group that a call has made is destroyed between the calls, which is not timed.
      latency_(timing.mode == Mode::latency || timing.overlap || collective_.makes_group) {
  for (const Buffers& set : sets_) data_.prepare(set);
}

bool Calls::on_device() const {
  return !on_host(group_.memory());
}

/// A barrier whose timeout allows other ranks to fill or check for longer than this one.
void Calls::meet() {
  group_.barrier({.deadline = Deadline::after(patience_)});
}

template <typename Use>
void Calls::each_next_set(const Use& use) {
  for (std::int64_t i = 0; i < timing_.aggregate; ++i)
    use(sets_[(next_set_ + static_cast<std::size_t>(i)) % sets_.size()]);
}

void Calls::prepare() {
  each_next_set([&](const Buffers& set) { data_.prepare(set); });
}

void Calls::inspect() {
  each_next_set([&](const Buffers& set) { data_.inspect(set); });
}

Work Calls::start() {
  if (timing_.aggregate == 1) return collective_.start(group_, sets_[next_set_].arrays, how_);
  Coalesce together(group_);
  each_next_set(
      [&](const Buffers& set) { together.add(collective_.start(group_, set.arrays, how_)); });
  return together.launch();
}

void Calls::call() {
  const bool in_one = timing_.aggregate > 1;
  if (!in_one && !timing_.overlap) return collective_.call(group_, sets_[next_set_].arrays, how_);
  Work work = start();
  if (!on_device()) return work.wait();
  work.block_stream({});
  queued_.push_back(std::move(work));  // Its destructor would wait.
}

void Calls::wait_for_device() {
  if (mark_.data() == nullptr) mark_ = Tensor(group_.memory(), Shape{1}, DType::u8);
  wait_for_default_stream(group_.memory(), mark_.data());
  queued_.clear();
}

void Calls::check_once() {
  meet();
  call();
  inspect();
}

void Calls::run(std::span<std::int64_t> ns, bool counted) {
  const auto advance = [&] {
    next_set_ = (next_set_ + static_cast<std::size_t>(timing_.aggregate)) % sets_.size();
  };
  position_.iteration = -1;
  meet();
  auto before = Clock::now();
  for (std::int64_t& sample : ns) {
    if (counted) position_.iteration = counted_++;
    if (each_checked_) {
      prepare();
      meet();
    }
    if (made_) {  // Peers may still be making it before the barrier.
      group_.barrier();
      made_.reset();
    }
    if (latency_) group_.barrier();
    if (one_by_one()) before = Clock::now();
    for (std::int64_t i = 0; i < burst_; ++i) {
      call();
      if (!each_checked_) advance();
    }
    if (on_device()) wait_for_device();
    const auto after = Clock::now();
    sample = std::chrono::nanoseconds(after - before).count() / calls_per_sample();
    before = after;
    if (each_checked_) inspect();
    if (compute_) overlap(counted);
    if (each_checked_) advance();
  }
  if (each_checked_) meet();
}

/// Times the compute alone, and a call with the compute between its start and its end.
void Calls::overlap(bool counted) {
  group_.barrier();
  auto before = Clock::now();
  compute_->run(compute_->rounds());
  const auto alone = Clock::now() - before;
  if (each_checked_) {
    prepare();
    meet();
  }
  group_.barrier();
  before = Clock::now();
  Work work = start();
  compute_->run(compute_->rounds());
  work.wait();
  const auto together = Clock::now() - before;
  if (each_checked_) inspect();
  if (!counted) return;
  const auto us = [](Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  compute_us_.push_back(us(alone));
  overall_us_.push_back(us(together));
}

}  // namespace tutti::tool
