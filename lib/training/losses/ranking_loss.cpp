#include <tutti/losses/ranking_loss.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/global_batch.hpp"
#include "losses/options.hpp"
#include "losses/over_ranks.hpp"
#include "losses/row_queue.hpp"
#include "losses/staged.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] losses {
namespace {

using internal::failf;
using internal::losses::RowQueue;

void check_temperature(std::string_view loss, double temperature) {
  // The range keeps quotients by the temperature and by its multiples finite.
  if (!(temperature >= 1e-300 && temperature <= 1e300))
    failf(Errc::invalid_argument, "{}: temperature is {}; it must be between 1e-300 and 1e300",
          loss, temperature);
}

/// Checks max_rows, and the length of the queue, which is limited because it is allocated in host
/// memory.
void check_pool(std::string_view loss, const PoolOptions& pool) {
  if (pool.queue < 0 || pool.queue > UINT32_MAX)
    failf(Errc::invalid_argument, "{}: queue is {}; it must be 0 to {} rows", loss, pool.queue,
          UINT32_MAX);
  if (pool.max_rows < 0)
    failf(Errc::invalid_argument, "{}: max_rows is {}; it must be 0 (all) or more", loss,
          pool.max_rows);
}

bool is_name(std::string_view text) {
  return text.size() < 64 &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string_view::npos;
}

}  // namespace

RankingLoss::RankingLoss(std::string_view name, std::int64_t classes, double temperature,
                         std::int64_t ignore_index, const PoolOptions& pool) try
    : name_(name), classes_(classes), temperature_(temperature), ignore_index_(ignore_index) {
  internal::losses::check_classes(name, classes);
  check_temperature(name, temperature);
  check_pool(name, pool);
  queue_ = std::make_unique<RowQueue>(classes, pool);
} catch (...) {
  internal::end_calls(nullptr);
}

RankingLoss::RankingLoss(RankingLoss&&) noexcept = default;
RankingLoss& RankingLoss::operator=(RankingLoss&&) noexcept = default;
RankingLoss::~RankingLoss() = default;

void RankingLoss::set_temperature(double temperature) {
  check_temperature(name_, temperature);
  temperature_ = temperature;
}

bool RankingLoss::gathers() const noexcept {
  return queue_->options().gather;
}

std::int64_t RankingLoss::queued() const noexcept {
  return queue_->size();
}

void RankingLoss::reset_queue() noexcept {
  queue_->reset();
}

std::string RankingLoss::save(ProcessGroup& group, const CallOptions& options) const {
  return save_over(&group, options);
}

std::string RankingLoss::save() const {
  return save_over(nullptr, {});
}

std::string RankingLoss::save_over(ProcessGroup* group, const CallOptions& options) const try {
  if (!gathers()) group = nullptr;
  const auto all = internal::losses::gather_queue(
      group, name_, fmt::format("temperature {}", temperature_), *queue_, classes_, options);
  return std::string(name_) + '\n' + queue_->save(all, temperature_);
} catch (...) {
  internal::end_calls(group);
}

void RankingLoss::enqueue_over(ProcessGroup* group, const Batch& batch,
                               const CallOptions& options) try {
  internal::losses::Staged staged(group, options);
  if (!gathers()) group = nullptr;
  const int rank = group == nullptr ? 0 : group->rank();
  const int ranks = group == nullptr ? 1 : group->size();
  RowQueue::Rows newest;
  const auto check_and_count = [&](std::span<double> counts) {
    const auto here = staged.on_host(batch);
    internal::losses::check_batch(here, {.classes = classes_, .ignore_index = ignore_index_},
                                  queue_->options());
    if (here.weight) (void)internal::losses::check_weights(*here.weight);
    queue_->check_world(rank, ranks);
    newest = queue_->newest(here, ignore_index_);
    queue_->reserve(newest.size(), ranks);
    const auto* targets = static_cast<const std::int64_t*>(here.targets.data);
    const auto rows = here.logits.shape.rows();
    counts[static_cast<std::size_t>(rank)] =
        static_cast<double>(rows - std::count(targets, targets + rows, ignore_index_));
  };
  const auto words =
      fmt::format("enqueue, classes {}, ignore_index {}{}{}", classes_, ignore_index_,
                  batch.weight ? ", with weights" : "", queue_->state());
  const auto sums = internal::losses::sums_over_ranks(
      group, name_, words, static_cast<std::size_t>(ranks), check_and_count, options);
  const std::vector<std::int64_t> counts(sums.begin(), sums.end());
  queue_->enqueue(rank, counts, newest, batch.weight.has_value());
} catch (...) {
  internal::end_calls(group);
}

QueuedRows RankingLoss::rows_over(ProcessGroup* group, const CallOptions& options) const try {
  if (!gathers()) group = nullptr;
  auto all =
      internal::losses::gather_queue(group, name_, "queued rows", *queue_, classes_, options);
  return {std::move(all.scores), std::move(all.targets), std::move(all.iid),
          std::move(all.weights)};
} catch (...) {
  internal::end_calls(group);
}

void RankingLoss::load(ProcessGroup& group, std::string_view state) {
  gathers() ? load_as(group.rank(), group.size(), state) : load(state);
}

void RankingLoss::load(std::string_view state) {
  load_as(0, 1, state);
}

void RankingLoss::set_group(ProcessGroup& group, const CallOptions& options) try {
  auto mine = queue_->save_own(temperature_);
  internal::losses::named(name_, [&] {
    if (gathers()) {
      const auto state = queue_->merge(all_gather_bytes(group, mine, options));
      temperature_ = queue_->load(state, group.rank(), group.size());
    } else {  // The queue of each rank has all rows.
      broadcast_bytes(group, mine, 0, options);
      temperature_ = queue_->load(queue_->merge(std::span(&mine, 1)), 0, 1);
    }
  });
} catch (...) {
  internal::end_calls(&group);
}

void RankingLoss::load_as(int rank, int ranks, std::string_view state) try {
  internal::losses::named(name_, [&] {
    // Refuses the state of another loss: its queue would load, but the temperatures of two losses
    // have different units.
    const auto name = state.substr(0, state.find('\n'));
    if (name.size() < state.size() && is_name(name)) {
      if (name != name_)
        failf(Errc::invalid_argument, "the saved state was made by {}, but this loss is {}", name,
              name_);
      state.remove_prefix(name.size() + 1);
    }
    temperature_ = queue_->load(state, rank, ranks);
  });
} catch (...) {
  internal::end_calls(nullptr);
}

}  // namespace losses
}  // namespace tutti
