#include "losses/global_batch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/over_ranks.hpp"
#include "losses/subsample.hpp"
#include "rows/gather_arrays.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal::losses {
namespace {

/// The largest number of rows; indices have 31 bits.
constexpr std::int64_t most_rows = INT32_MAX;

void check_total(std::string_view loss, std::int64_t rows) {
  if (rows > most_rows)
    failf(Errc::count_overflow, "{}: {} rows; at most {} are supported", loss, rows, most_rows);
}

void check_pool_rows(const Rows& of_ranks, int ranks, std::int64_t rows,
                     const tutti::losses::PoolOptions& options) {
  if (options.gather || options.queue > 0)
    failf(Errc::invalid_argument,
          "pool_rows are set, and the options are gather {} and queue {}; pool_rows need gather "
          "false and queue 0",
          options.gather, options.queue);
  if (of_ranks.listed() && std::ssize(of_ranks.list()) != ranks)
    failf(Errc::invalid_argument, "pool_rows has {} entries for {} ranks", of_ranks.list().size(),
          ranks);
  std::int64_t left = rows;
  for (int r = 0; r < ranks; ++r) {
    if (of_ranks[r] < 0 || of_ranks[r] > left)
      failf(Errc::invalid_argument,
            "pool_rows gives rank {} {} rows; of the {} rows of the batch {} are left", r,
            of_ranks[r], rows, left);
    left -= of_ranks[r];
  }
}

/// If no rank has more than this many bytes of rows, all ranks get all rows, even where sums over
/// ranks would suffice. For f32 that saves six exchanges.
constexpr std::size_t few_bytes = 4096;

}  // namespace

void check_batch(const Batch& batch, const BatchRules& rules, const PoolOptions& pool) {
  const auto& logits = batch.logits;
  const auto rows = logits.shape.rows();
  if (rows > most_rows)
    failf(Errc::count_overflow, "{} rows; at most {} are supported", rows, most_rows);
  check_rows(logits, batch.targets, rules.classes, rules.ignore_index, pool.other_targets);
  if (const auto& iid = batch.iid; iid.data != nullptr || iid.shape.numel() != 0) {
    if ((iid.dtype != DType::boolean && iid.dtype != DType::u8) || iid.shape.numel() != rows ||
        iid.shape.rows() != rows)
      failf(Errc::invalid_argument, "iid is {} {}, logits {}; iid must be boolean or u8 [{}]",
            name_of(iid.dtype), to_string(iid.shape), to_string(logits.shape), rows);
    check_elements("iid", iid);
  }
  if (batch.weight && !(batch.weight->shape == Shape::vector(rows)))
    failf(Errc::invalid_argument, "weights are {}, logits {}; weights must be [{}]",
          to_string(batch.weight->shape), to_string(logits.shape), rows);
}

double class_weight(Reduction reduction, const LossResult& result) noexcept {
  const auto count = std::ranges::count(result.status, ClassStatus::valid);
  return reduction == Reduction::mean && count > 0 ? 1 / static_cast<double>(count) : 1;
}

LossResult start_result(std::int64_t classes) {
  const auto n = static_cast<std::size_t>(classes);
  LossResult result;
  result.per_class.assign(n, std::numeric_limits<double>::quiet_NaN());
  result.status.assign(n, ClassStatus::valid);
  return result;
}

GlobalBatch::GlobalBatch(ProcessGroup* group, const Batch& batch, const BatchRules& rules,
                         RowQueue& queue, const CallOptions& options)
    : shared_(batch.pool_rows.given()),
      group_(queue.options().gather || shared_ ? group : nullptr),
      queue_(queue),
      options_(options),
      staged_(group, options),
      shape_(batch.logits.shape),
      dtype_(batch.logits.dtype),
      classes_(rules.classes),
      training_(batch.training),
      given_(batch.weight.has_value()),
      weighted_(given_ || queue.weighted()),
      counts_(static_cast<std::size_t>(classes_ == 1 ? 2 : classes_ + 1)),
      enqueued_(static_cast<std::size_t>(ranks())) {}

GlobalBatch GlobalBatch::collect(ProcessGroup* group, const Batch& batch, const BatchRules& rules,
                                 RowQueue& queue, const CallOptions& options) {
  GlobalBatch pool(group, batch, rules, queue, options);
  auto here = batch;
  const PoolRows source = pool.gather_rows(here, rules);
  pool.options_.name = {};
  auto chosen = pool.choose(source, rules);
  pool.count(source, chosen, true);
  const auto most = queue.options().max_rows;
  if (most > 0 && pool.total().rows > most) {
    pool.draw(source, chosen);
    pool.count(source, chosen, false);
  }
  pool.take(source, chosen);
  pool.weigh(rules.loss);
  pool.remember(here, rules);
  return pool;
}

/// Collective. Returns the rows of all ranks if the loss needs all rows or there are few; otherwise
/// this rank's rows. Replaces the arrays of `batch` by copies on the host.
PoolRows GlobalBatch::gather_rows(Batch& batch, const BatchRules& rules) {
  PoolRows source;
  std::vector<ConstTensorView> arrays;
  const auto check_and_stage = [&] {
    batch = staged_.on_host(batch);
    check_batch(batch, rules, queue_.options());
    if (shared_) check_pool_rows(batch.pool_rows, ranks(), shape_.rows(), queue_.options());
    queue_.check_world(rank(), ranks());
    const auto rows = shape_.rows();
    source.logits = {batch.logits.data, dtype_, {rows, classes_}};
    source.targets = {batch.targets.data, DType::i64, {rows}};
    // All ranks send iid if the loss uses it, because another rank may pass one.
    if (rules.uses_iid) source.iid = ConstTensorView{batch.iid.data, DType::u8, {rows}};
    // Without weights, rows of this call count as 1 beside those of the queue.
    if (weighted_)
      source.hold_weights(batch.weight ? check_weights(*batch.weight)
                                       : std::vector<double>(static_cast<std::size_t>(rows), 1));
    if (queue_.own().size() != 0 || (rules.uses_iid && batch.iid.data == nullptr))
      source.join(queue_.own(), classes_);
    arrays = source.arrays();
  };
  if (group_ == nullptr || shared_) {
    named(rules.loss, check_and_stage);
    check_total(rules.loss, source.logits.shape.rows());
    const Rows of_ranks = shared_ ? batch.pool_rows : Rows(shape_.rows());
    for (int r = 0; r < ranks(); ++r)
      source.blocks.push_back({r, static_cast<std::size_t>(of_ranks.offset(r)),
                               static_cast<std::size_t>(of_ranks.offset(r + 1))});
    return source;
  }
  const auto words =
      fmt::format("{}, {}, logits {}{}{}", rules.options, training_ ? "training" : "evaluation",
                  name_of(dtype_), batch.weight ? ", with weights" : "", queue_.state());
  const auto check_and_set_arrays = [&](GatherRequest& request) {
    check_and_stage();
    request.arrays = arrays;
  };
  auto gathered = gather_host_arrays(*group_,
                                     {.caller = rules.loss,
                                      .small = rules.needs_all ? GatherRequest::most : few_bytes,
                                      .only_small = !rules.needs_all,
                                      .check = check_and_set_arrays,
                                      .agree = words},
                                     options_);
  const auto layout = gathered.rows;
  has_all_ = !gathered.data.empty();
  if (has_all_) source.hold(std::move(gathered.data));
  check_total(rules.loss, layout.total());
  for (int r = 0; r < ranks(); ++r) {
    if (!has_all_ && r != rank()) continue;
    if (layout[r] < queue_.size_of(r))
      throw gather_error(
          Errc::mismatch, *group_, rules.loss, r,
          fmt::format("rank {} sent {} rows including its queue, but its queue has {}", r,
                      layout[r], queue_.size_of(r)));
    const auto first = has_all_ ? layout.offset(r) : 0;
    source.blocks.push_back({r, static_cast<std::size_t>(first),
                             static_cast<std::size_t>(first + layout[r] - queue_.size_of(r))});
  }
  return source;
}

std::size_t GlobalBatch::kind_of(std::int64_t target) const noexcept {
  if (classes_ == 1) return target != 0 ? 1 : 0;
  return static_cast<std::size_t>(target < 0 || target >= classes_ ? classes_ : target);
}

GlobalBatch::Chosen GlobalBatch::choose(const PoolRows& source, const BatchRules& rules) {
  Chosen chosen;
  const auto& options = queue_.options();
  chosen.rows.reserve(source.rows());
  const auto add = [&](std::size_t row, std::int64_t number) {
    chosen.rows.push_back(static_cast<std::uint32_t>(row));
    if (options.max_rows > 0) chosen.numbers.push_back(number);
  };
  auto number = queue_.next();
  const auto add_rows = [&](std::size_t first, std::size_t last) {
    const auto before = number;
    for (std::size_t i = first; i < last; ++i)
      if (source.target(i) != rules.ignore_index) add(i, number++);
    return number - before;
  };
  for (const auto& block : source.blocks)
    enqueued_[static_cast<std::size_t>(block.rank)] = add_rows(block.live, block.queued);
  live_ = chosen.rows.size();
  if (shared_) add_rows(source.blocks.back().queued, source.rows());
  std::vector<std::size_t> next(static_cast<std::size_t>(ranks()), source.rows());
  for (const auto& block : source.blocks) next[static_cast<std::size_t>(block.rank)] = block.queued;
  for (const auto& segment : queue_.segments()) {
    auto& row = next[static_cast<std::size_t>(segment.rank)];
    if (row == source.rows()) continue;  // Another rank holds the rows.
    for (std::int64_t i = 0; i < segment.count; ++i, ++row)
      if (source.target(row) != rules.ignore_index) add(row, segment.first + i);
  }
  return chosen;
}

/// Counts the chosen rows over all ranks, and if `and_enqueued` is set, exchanges enqueued_.
/// Collective unless every rank has all rows.
void GlobalBatch::count(const PoolRows& source, const Chosen& chosen, bool and_enqueued) {
  std::ranges::fill(counts_, Count{});
  for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
    auto& of_kind = counts_[kind_of(source.target(chosen.rows[i]))];
    ++of_kind.rows;
    of_kind.iid += source.is_iid(chosen.rows[i]) ? 1 : 0;
    of_kind.live += is_live(i) ? 1 : 0;
  }
  if (has_all_) return;
  std::vector<std::int64_t> sums;
  for (const auto& of_kind : counts_)
    sums.insert(sums.end(), {of_kind.rows, of_kind.iid, of_kind.live});
  if (and_enqueued) sums.insert(sums.end(), enqueued_.begin(), enqueued_.end());
  add_up(sums);
  for (std::size_t i = 0; i < counts_.size(); ++i)
    counts_[i] = {sums[3 * i], sums[3 * i + 1], sums[3 * i + 2]};
  if (and_enqueued) std::copy(sums.end() - ranks(), sums.end(), enqueued_.begin());
}

/// Draws a sample of the chosen rows. Collective unless every rank has all rows.
void GlobalBatch::draw(const PoolRows& source, Chosen& chosen) {
  if (!has_all_)  // The rows of lower ranks have lower numbers.
    for (std::size_t i = 0; i < live_; ++i)
      chosen.numbers[i] +=
          std::accumulate(enqueued_.begin(), enqueued_.begin() + rank(), std::int64_t{0});
  std::vector<std::uint32_t> kinds;
  for (const auto row : chosen.rows)
    kinds.push_back(static_cast<std::uint32_t>(kind_of(source.target(row))));
  std::vector<std::int64_t> totals;
  for (const auto& of_kind : counts_) totals.push_back(of_kind.rows);
  const auto& options = queue_.options();
  const auto drawn =
      subsample({chosen.numbers, kinds, totals}, options.max_rows, options.seed, queue_.calls(),
                [this](std::span<std::int64_t> counts) { add_up(counts); });
  std::size_t kept = 0;
  std::size_t live = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    if (drawn[i] == 0) continue;
    live += i < live_ ? 1 : 0;
    chosen.rows[kept++] = chosen.rows[i];
  }
  chosen.rows.resize(kept);
  live_ = live;
}

void GlobalBatch::take(const PoolRows& source, const Chosen& chosen) {
  scores_ = columns_of(source.logits, static_cast<std::size_t>(classes_), chosen.rows);
  targets_.reserve(chosen.rows.size());
  iid_.reserve(chosen.rows.size());
  own_of_ranks_.assign(static_cast<std::size_t>(ranks()), 0);
  auto block = source.blocks.begin();
  for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
    const auto row = chosen.rows[i];
    targets_.push_back(source.target(row));
    iid_.push_back(source.is_iid(row) ? 1 : 0);
    if (weighted_) weights_.push_back(source.weight(row));
    if (i >= live_) continue;
    while (row >= block->queued) ++block;  // Rows of this call are ordered by rank.
    ++own_of_ranks_[static_cast<std::size_t>(block->rank)];
    if (block->rank < rank())
      ++first_own_;
    else if (block->rank == rank())
      own_rows_.push_back(static_cast<std::uint32_t>(shared_ ? row : row - block->live));
  }
}

/// Sums the weights by kind. Collective only with weights, and unless every rank has all rows.
void GlobalBatch::weigh(std::string_view loss) {
  for (const auto& of_kind : counts_)
    masses_.push_back({static_cast<double>(of_kind.rows), static_cast<double>(of_kind.live)});
  if (!weighted_) return;
  std::vector<double> sums(2 * masses_.size());
  for (std::size_t i = 0; i < rows(); ++i) {
    const auto kind = kind_of(targets_[i]);
    sums[2 * kind] += weights_[i];
    sums[2 * kind + 1] += is_live(i) ? weights_[i] : 0;
  }
  add_up(sums);
  double all = 0;
  for (std::size_t kind = 0; kind < masses_.size(); ++kind) {
    masses_[kind] = {sums[2 * kind], sums[2 * kind + 1]};
    all += masses_[kind].rows;
  }
  if (!std::isfinite(all))  // On every rank alike.
    failf(Errc::invalid_argument, "{}: the sum of the weights is {}; it must be finite", loss, all);
}

/// Copies the rows that commit() adds to the queue, and reserves memory for them.
void GlobalBatch::remember(const Batch& batch, const BatchRules& rules) {
  if (!training_ || queue_.options().queue == 0) return;
  fresh_ = queue_.newest(batch, rules.ignore_index);
  queue_.reserve(fresh_.size(), ranks());
}

void GlobalBatch::commit() noexcept {
  if (!training_) return;
  queue_.count_call();
  queue_.enqueue(rank(), enqueued_, fresh_, given_);
}

GlobalBatch::Count GlobalBatch::total() const noexcept {
  Count sum;
  for (const auto& of_kind : counts_) {
    sum.rows += of_kind.rows;
    sum.iid += of_kind.iid;
    sum.live += of_kind.live;
  }
  return sum;
}

std::vector<std::uint8_t> GlobalBatch::positives(std::size_t class_index) const {
  std::vector<std::uint8_t> positive(rows());
  for (std::size_t i = 0; i < rows(); ++i) positive[i] = is_positive(i, class_index) ? 1 : 0;
  return positive;
}

Tensor GlobalBatch::gradient(std::span<const double> numbers) {
  return staged_.gradient([&](void* grad) {
    const auto classes = static_cast<std::size_t>(classes_);
    with_type(dtype_, [&]<typename T>(T) {
      auto* out = static_cast<T*>(grad);
      std::fill_n(out, shape_.numel(), T{});
      for (std::size_t i = 0; i < own(); ++i)
        for (std::size_t c = 0; c < classes; ++c)
          out[own_rows_[i] * classes + c] = from_double<T>(numbers[i * classes + c]);
    });
  });
}

void GlobalBatch::add_up(const TensorView& numbers) const {
  if (!has_all_)
    host_call(*group_, {.kind = Operation::all_reduce, .in = numbers, .out = numbers}, options_);
}

std::pair<std::vector<double>, std::size_t> GlobalBatch::gather(std::vector<double> mine,
                                                                std::size_t width) const {
  if (has_all_) return {std::move(mine), 0};
  const ConstTensorView rows(
      mine.data(), DType::f64,
      {static_cast<std::int64_t>(mine.size() / width), static_cast<std::int64_t>(width)});
  const auto all =
      gather_host_arrays(*group_, {.caller = "all_gather_rows", .arrays = {&rows, 1}}, options_);
  const auto* from = static_cast<const double*>(all.data[0].data());
  return {{from, from + all.data[0].shape().numel()},
          static_cast<std::size_t>(all.rows.offset(rank()))};
}

std::vector<double> GlobalBatch::gather_shares(std::span<const double> mine, std::size_t width,
                                               std::span<const std::int64_t> counts) const {
  if (group_ == nullptr) return {mine.begin(), mine.end()};
  std::vector<std::int64_t> items(counts.begin(), counts.end());
  if (shared_)  // One more item of each rank, with a hash of its pool.
    for (auto& number : items) ++number;
  std::vector<double> own(mine.size() + (shared_ ? width : 0));
  std::ranges::copy(mine, own.begin());
  if (shared_) own[mine.size()] = hash_of_pool();
  const RowLayout layout(items);
  const ConstTensorView in(own.data(), DType::f64,
                           {layout[rank()], static_cast<std::int64_t>(width)});
  const Tensor gathered = all_rows(*group_, in, layout, options_);
  auto all = to_doubles(gathered);
  if (!shared_) return all;
  std::vector<double> shares;
  std::vector<double> hashes;
  for (int r = 0; r < ranks(); ++r) {
    const auto* const from = all.data() + static_cast<std::size_t>(layout.offset(r)) * width;
    const auto* const last = from + static_cast<std::size_t>(layout[r] - 1) * width;
    shares.insert(shares.end(), from, last);
    hashes.push_back(*last);
  }
  const auto other = std::ranges::find_if(hashes, [&](double hash) { return hash != hashes[0]; });
  if (other != hashes.end())
    throw Error(Errc::mismatch,
                fmt::format("ranks 0 and {} have different pools; with pool_rows every rank passes "
                            "the same rows",
                            other - hashes.begin()));
  return shares;
}

double GlobalBatch::hash_of_pool() const {
  Hash hash;
  const auto add = [&](const auto& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    hash.add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  };
  add(scores_);
  add(targets_);
  add(weights_);
  return static_cast<double>(hash.value() >> 11);  // 53 bits, which a double represents.
}

std::vector<double> GlobalBatch::return_to_owners(std::span<const double> mine, std::size_t width,
                                                  const RowLayout& parts) const {
  const ConstTensorView in(mine.data(), DType::f64,
                           {parts[rank()], static_cast<std::int64_t>(width)});
  const Tensor own = move_rows(*group_, in, parts, RowLayout(own_of_ranks_), options_);
  return to_doubles(own);
}

}  // namespace tutti::internal::losses
