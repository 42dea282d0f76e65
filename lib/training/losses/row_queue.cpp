#include "losses/row_queue.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "losses/elements.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"
#include "values/saved_state.hpp"

namespace tutti::internal::losses {
namespace {

constexpr std::string_view magic = "TUTTUQ03";

bool is_weighted(std::span<const double> weights) {
  return std::ranges::any_of(weights, [](double weight) { return weight != 1; });
}

/// Removes the first `first` elements.
template <typename T>
void drop(std::vector<T>& all, std::size_t first) noexcept {
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
}

/// Appends the last `count` elements of `more`.
template <typename T>
void append(std::vector<T>& all, const std::vector<T>& more, std::size_t count) noexcept {
  all.insert(all.end(), more.end() - static_cast<std::ptrdiff_t>(count), more.end());
}

}  // namespace

void RowQueue::Rows::append(const Rows& from, std::int64_t first, std::int64_t last,
                            std::int64_t classes) {
  const auto add = [&](auto& to, const auto& all, std::int64_t width) {
    to.insert(to.end(), all.begin() + first * width, all.begin() + last * width);
  };
  add(scores, from.scores, classes);
  add(targets, from.targets, 1);
  add(iid, from.iid, 1);
  add(weights, from.weights, 1);
}

bool RowQueue::weighted() const noexcept {
  return std::ranges::any_of(segments_, &Segment::weighted);
}

std::int64_t RowQueue::size() const noexcept {
  return segments_.empty() ? 0 : next_ - segments_.front().first;
}

std::int64_t RowQueue::size_of(int rank) const noexcept {
  std::int64_t sum = 0;
  for (const auto& segment : segments_) sum += segment.rank == rank ? segment.count : 0;
  return sum;
}

std::string RowQueue::state() const {
  std::string words;
  if (options_.other_targets) words += ", other_targets";
  if (options_.queue != 0)
    words +=
        fmt::format(", queue {} of {} rows (history {:016x})", options_.queue, size(), history_);
  if (options_.max_rows != 0)
    words += fmt::format(", max_rows {} with seed {} after {} calls", options_.max_rows,
                         options_.seed, calls_);
  return words;
}

void RowQueue::check_world(int rank, int ranks) const {
  if (segments_.empty() || (rank == rank_ && ranks == ranks_)) return;
  failf(Errc::invalid_argument,
        "the queue was filled by rank {} of {}, but this call is made by rank {} of {}: call "
        "reset_queue(), or save() there and load() here",
        rank_, ranks_, rank, ranks);
}

RowQueue::Rows RowQueue::newest(const tutti::losses::Batch& batch,
                                std::int64_t ignore_index) const {
  const auto* targets = static_cast<const std::int64_t*>(batch.targets.data);
  const auto* iid = static_cast<const std::uint8_t*>(batch.iid.data);
  std::vector<std::uint32_t> rows;
  for (std::int64_t i = batch.logits.shape.rows(); i-- > 0 && std::ssize(rows) < options_.queue;)
    if (targets[i] != ignore_index) rows.push_back(static_cast<std::uint32_t>(i));
  std::ranges::reverse(rows);
  Rows newest;
  with_type(batch.logits.dtype, [&]<typename T>(T) {
    const auto* logits = static_cast<const T*>(batch.logits.data);
    for (const auto row : rows)
      for (std::int64_t c = 0; c < classes_; ++c)
        newest.scores.push_back(to_double(logits[row * classes_ + c]));
  });
  const auto weights = batch.weight ? to_doubles(*batch.weight) : std::vector<double>();
  for (const auto row : rows) {
    newest.targets.push_back(targets[row]);
    newest.iid.push_back(iid == nullptr || iid[row] != 0 ? 1 : 0);
    newest.weights.push_back(batch.weight ? weights[row] : 1);
  }
  return newest;
}

void RowQueue::reserve(std::size_t rows, int ranks) {
  if (options_.queue == 0) return;
  own_.scores.reserve((own_.size() + rows) * static_cast<std::size_t>(classes_));
  own_.targets.reserve(own_.size() + rows);
  own_.iid.reserve(own_.size() + rows);
  own_.weights.reserve(own_.size() + rows);
  segments_.reserve(segments_.size() + static_cast<std::size_t>(ranks));
}

void RowQueue::enqueue(int rank, std::span<const std::int64_t> counts, const Rows& mine,
                       bool weighted) noexcept {
  if (options_.queue == 0) return;
  const auto before = next_;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    const auto count = counts[static_cast<std::size_t>(r)];
    if (count != 0) segments_.push_back({next_, count, r, weighted});
    next_ += count;
  }
  if (next_ == before) return;
  Hash hash;
  hash.add(history_);
  hash.add(counts);
  if (weighted) hash.add(std::string_view("weighted"));
  history_ = hash.value();
  rank_ = rank;
  ranks_ = static_cast<int>(counts.size());
  // Drops own rows that are not among the last `queue` rows of all ranks: rows of the queue first,
  // then new rows.
  const auto oldest = next_ - options_.queue;
  std::int64_t dropped = 0;
  std::size_t gone = 0;
  for (auto& segment : segments_) {
    const auto lost = std::clamp<std::int64_t>(oldest - segment.first, 0, segment.count);
    segment.first += lost;
    segment.count -= lost;
    if (segment.rank == rank) dropped += lost;
    if (segment.count == 0) ++gone;
  }
  drop(segments_, gone);
  const auto held = static_cast<std::int64_t>(own_.size());
  const auto brought = counts[static_cast<std::size_t>(rank)];
  const auto left = static_cast<std::size_t>(std::min(dropped, held));
  const auto added = static_cast<std::size_t>(brought - std::max<std::int64_t>(dropped - held, 0));
  const auto columns = static_cast<std::size_t>(classes_);
  drop(own_.scores, left * columns);
  drop(own_.targets, left);
  drop(own_.iid, left);
  drop(own_.weights, left);
  append(own_.scores, mine.scores, added * columns);
  append(own_.targets, mine.targets, added);
  append(own_.iid, mine.iid, added);
  append(own_.weights, mine.weights, added);
}

void RowQueue::reset() noexcept {
  next_ = 0;
  history_ = 0;
  segments_.clear();
  own_.scores.clear();
  own_.targets.clear();
  own_.iid.clear();
  own_.weights.clear();
}

std::string RowQueue::save(const Rows& all, double temperature) const {
  Writer out;
  out.reserve(6 * sizeof(double) + all.scores.size() * sizeof(double) + all.size() * 17);
  out.i64(classes_).i64(options_.queue).i64(calls_).i64(next_).f64(temperature);
  out.i64(static_cast<std::int64_t>(all.size()));
  out.numbers(all.scores).numbers(all.targets).numbers(all.iid).numbers(all.weights);
  return seal(magic, out);
}

double RowQueue::load(std::string_view state, int rank, int ranks) {
  auto opened = unseal(magic, "saved state of a ranking loss", state);
  auto& in = opened.content;
  const auto classes = in.i64();
  const auto queue = in.i64();
  if (classes != classes_ || queue != options_.queue)
    failf(Errc::invalid_argument,
          "the saved loss has {} classes and a queue of {} rows, this loss has {} and a queue of "
          "{}; they must be equal",
          classes, queue, classes_, options_.queue);
  RowQueue made(classes_, options_);
  made.calls_ = in.i64();
  made.next_ = in.i64();
  made.history_ = opened.digest;
  made.rank_ = rank;
  made.ranks_ = ranks;
  const auto temperature = in.f64();
  const auto rows = in.i64();
  const auto fail_damaged = [&] {
    failf(Errc::invalid_argument, "the saved state of a ranking loss is damaged ({} bytes)",
          state.size());
  };
  if (rows < 0 || rows > std::max<std::int64_t>(queue, 0) || made.next_ < rows || made.calls_ < 0 ||
      !(temperature > 0) || !std::isfinite(temperature))
    fail_damaged();

  // Every rank takes a part; the sizes differ by at most one row.
  const auto first_of = [&](int r) { return rows * r / ranks; };
  for (int r = 0; r < ranks; ++r) {
    const auto count = first_of(r + 1) - first_of(r);
    if (count != 0) made.segments_.push_back({made.next_ - rows + first_of(r), count, r});
  }
  const auto take_part = [&]<typename T>(std::vector<T>& to, std::int64_t columns) {
    const auto numbers_before = [&](int r) {
      return static_cast<std::uint64_t>(first_of(r)) * static_cast<std::uint64_t>(columns);
    };
    in.raw(numbers_before(rank) * sizeof(T));
    to = in.numbers<T>(numbers_before(rank + 1) - numbers_before(rank));
    in.raw((numbers_before(ranks) - numbers_before(rank + 1)) * sizeof(T));
  };
  take_part(made.own_.scores, classes_);
  take_part(made.own_.targets, 1);
  take_part(made.own_.iid, 1);
  // The weights of all ranks, so that every rank knows where there are some.
  const auto weights = in.numbers<double>(static_cast<std::uint64_t>(rows));
  in.end();
  if (!std::ranges::all_of(weights, [](double w) { return w >= 0 && std::isfinite(w); }))
    fail_damaged();
  for (auto& segment : made.segments_)
    segment.weighted = is_weighted(std::span(weights).subspan(
        static_cast<std::size_t>(first_of(segment.rank)), static_cast<std::size_t>(segment.count)));
  made.own_.weights.assign(weights.begin() + first_of(rank), weights.begin() + first_of(rank + 1));
  *this = std::move(made);
  return temperature;
}

std::string RowQueue::save_own(double temperature) const {
  std::vector<std::int64_t> numbers;
  for (const auto& segment : segments_)
    for (std::int64_t i = 0; segment.rank == rank_ && i < segment.count; ++i)
      numbers.push_back(segment.first + i);
  Writer out;
  out.list(numbers).text(save(own_, temperature));
  return std::string(out.view());
}

std::string RowQueue::merge(std::span<const std::string> parts) const {
  struct NumberedRow {
    std::int64_t number;
    std::size_t part;
    std::int64_t row;
  };
  std::vector<NumberedRow> order;
  std::vector<RowQueue> queues;
  double temperature = 0;
  for (const auto& part : parts) {
    Reader in(part, Errc::invalid_argument, "the queue of a rank");
    const auto numbers = in.list();
    auto& queue = queues.emplace_back(classes_, options_);
    const auto its = queue.load(in.text(), 0, 1);
    if (queues.size() == 1) temperature = its;
    for (std::size_t i = 0; i < std::min(numbers.size(), queue.own_.size()); ++i)
      order.push_back({numbers[i], queues.size() - 1, static_cast<std::int64_t>(i)});
  }
  std::ranges::stable_sort(order, {}, &NumberedRow::number);
  // A rank may have ended one call more than the others.
  drop(order, order.size() - std::min(order.size(), static_cast<std::size_t>(options_.queue)));
  Rows all;
  RowQueue merged(classes_, options_);
  merged.calls_ = queues.front().calls_;
  for (const auto& queue : queues) merged.next_ = std::max(merged.next_, queue.next_);
  // Ranks that trained apart have used the same numbers.
  merged.next_ = std::max(merged.next_, std::ssize(order));
  for (const auto& [number, part, row] : order)
    all.append(queues[part].own_, row, row + 1, classes_);
  return merged.save(all, temperature);
}

std::vector<ConstTensorView> PoolRows::arrays() const {
  std::vector<ConstTensorView> all{logits, targets};
  for (const auto* array : {&iid, &weights})
    if (*array) all.push_back(**array);
  return all;
}

void PoolRows::hold(std::vector<Tensor>&& arrays) {
  arrays_ = std::move(arrays);
  auto next = arrays_.begin();
  logits = *next++;
  targets = *next++;
  for (auto* array : {&iid, &weights})
    if (*array) *array = *next++;
}

void PoolRows::hold_weights(std::vector<double>&& of_rows) {
  weight_copy_ = std::move(of_rows);
  weights = weight_copy_;
}

std::vector<std::uint8_t> PoolRows::joined(const ConstTensorView& flags,
                                           std::span<const std::uint8_t> queued) const {
  std::vector<std::uint8_t> all(rows(), 1);
  const auto* given = static_cast<const std::uint8_t*>(flags.data);
  for (std::size_t i = 0; given != nullptr && i < all.size(); ++i) all[i] = given[i] != 0 ? 1 : 0;
  all.insert(all.end(), queued.begin(), queued.end());
  return all;
}

void PoolRows::join(const RowQueue::Rows& queued, std::int64_t classes) {
  const auto rows = logits.shape.rows();
  const auto total = rows + std::ssize(queued.targets);
  logit_copy_.resize(static_cast<std::size_t>(total * classes) * size_of(logits.dtype));
  if (logits.bytes() != 0) std::memcpy(logit_copy_.data(), logits.data, logits.bytes());
  with_type(logits.dtype, [&]<typename T>(T) {
    auto* to = logit_copy_.data() + logits.bytes();
    for (const double score : queued.scores) {
      const T value = from_double<T>(score);
      if (!std::isfinite(to_double(value)))
        failf(Errc::invalid_argument,
              "a queued score is {}, which does not fit in the logits' dtype {}: call "
              "reset_queue() before the dtype changes",
              score, name_of(logits.dtype));
      std::memcpy(to, &value, sizeof value);
      to += sizeof value;
    }
  });
  if (iid) iid_copy_ = joined(*iid, queued.iid);
  const auto* of_targets = static_cast<const std::int64_t*>(targets.data);
  target_copy_.assign(of_targets, of_targets + rows);
  target_copy_.insert(target_copy_.end(), queued.targets.begin(), queued.targets.end());
  if (weights) {
    weight_copy_.insert(weight_copy_.end(), queued.weights.begin(), queued.weights.end());
    weights = weight_copy_;
  }
  logits = {logit_copy_.data(), logits.dtype, {total, classes}};
  targets = target_copy_;
  if (iid) iid = iid_copy_;
}

}  // namespace tutti::internal::losses
