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

constexpr std::string_view magic = "TUTTUQ02";

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
  if (options_.reference_compat) words += ", reference_compat";
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

RowQueue::Rows RowQueue::newest(const tutti::losses::RankingBatch& batch, std::int64_t ignore_index,
                                bool uses_iid) const {
  const auto* targets = static_cast<const std::int64_t*>(batch.targets.data);
  const auto* iid = static_cast<const std::uint8_t*>(batch.iid.data);
  std::vector<std::uint32_t> rows;
  for (std::int64_t i = batch.logits.shape.rows(); i-- > 0 && std::ssize(rows) < options_.queue;)
    if (targets[i] != ignore_index || options_.reference_compat)
      rows.push_back(static_cast<std::uint32_t>(i));
  std::ranges::reverse(rows);
  Rows newest;
  with_type(batch.logits.dtype, [&]<typename T>(T) {
    const auto* logits = static_cast<const T*>(batch.logits.data);
    for (const auto row : rows)
      for (std::int64_t c = 0; c < classes_; ++c) {
        const double score = to_double(logits[row * classes_ + c]);
        newest.scores.push_back(
            options_.reference_compat ? static_cast<double>(static_cast<float>(score)) : score);
      }
  });
  for (const auto row : rows) {
    newest.targets.push_back(targets[row]);
    newest.iid.push_back(!uses_iid || iid == nullptr || iid[row] != 0 ? 1 : 0);
  }
  return newest;
}

void RowQueue::reserve(std::size_t rows, int ranks) {
  if (options_.queue == 0) return;
  own_.scores.reserve((own_.size() + rows) * static_cast<std::size_t>(classes_));
  own_.targets.reserve(own_.size() + rows);
  own_.iid.reserve(own_.size() + rows);
  segments_.reserve(segments_.size() + static_cast<std::size_t>(ranks));
}

void RowQueue::enqueue(int rank, std::span<const std::int64_t> counts, const Rows& mine) noexcept {
  if (options_.max_rows != 0) ++calls_;
  if (options_.queue == 0) return;
  const auto before = next_;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    const auto count = counts[static_cast<std::size_t>(r)];
    if (count != 0) segments_.push_back({next_, count, r});
    next_ += count;
  }
  if (next_ == before) return;
  Hash hash;
  hash.add(history_);
  hash.add(counts);
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
  append(own_.scores, mine.scores, added * columns);
  append(own_.targets, mine.targets, added);
  append(own_.iid, mine.iid, added);
}

void RowQueue::reset() noexcept {
  next_ = 0;
  history_ = 0;
  segments_.clear();
  own_.scores.clear();
  own_.targets.clear();
  own_.iid.clear();
}

std::string RowQueue::save(const Rows& all, double temperature) const {
  Writer out;
  out.reserve(6 * sizeof(double) + all.scores.size() * sizeof(double) + all.size() * 9);
  out.i64(classes_).i64(options_.queue).i64(calls_).i64(next_).f64(temperature);
  out.i64(static_cast<std::int64_t>(all.size()));
  out.numbers(all.scores).numbers(all.targets).numbers(all.iid);
  return seal(magic, out);
}

double RowQueue::load(std::string_view state, int rank, int ranks) {
  auto opened = unseal(magic, "saved state of a ranking loss", state);
  auto& in = opened.content;
  const auto classes = in.i64();
  const auto queue = in.i64();
  if (classes != classes_ || queue != options_.queue)
    failf(Errc::invalid_argument,
          "the saved loss has {} classes and a queue of {} rows, this loss has {} and {}; they "
          "must be equal",
          classes, queue, classes_, options_.queue);
  RowQueue made(classes_, options_);
  made.calls_ = in.i64();
  made.next_ = in.i64();
  made.history_ = opened.digest;
  made.rank_ = rank;
  made.ranks_ = ranks;
  const auto temperature = in.f64();
  const auto rows = in.i64();
  if (rows < 0 || rows > std::max<std::int64_t>(queue, 0) || made.next_ < rows || made.calls_ < 0 ||
      !(temperature > 0) || !std::isfinite(temperature))
    failf(Errc::invalid_argument, "the saved state of a ranking loss is damaged ({} bytes)",
          state.size());

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
  in.end();
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
    std::size_t row;
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
      order.push_back({numbers[i], queues.size() - 1, i});
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
  const auto columns = static_cast<std::ptrdiff_t>(classes_);
  for (const auto& [number, part, row] : order) {
    const auto& from = queues[part].own_;
    const auto scores = from.scores.begin() + static_cast<std::ptrdiff_t>(row) * columns;
    all.scores.insert(all.scores.end(), scores, scores + columns);
    all.targets.push_back(from.targets[row]);
    all.iid.push_back(from.iid[row]);
  }
  return merged.save(all, temperature);
}

void PoolRows::hold(std::vector<Tensor>&& arrays) {
  arrays_ = std::move(arrays);
  logits = arrays_[0];
  targets = arrays_[1];
  // Removes the view of this rank's iid array, which would be too short.
  iid = {nullptr, DType::u8, Shape::vector(0)};
  if (arrays_.size() > 2) iid = arrays_[2];
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
  const auto* of_targets = static_cast<const std::int64_t*>(targets.data);
  target_copy_.assign(of_targets, of_targets + rows);
  target_copy_.insert(target_copy_.end(), queued.targets.begin(), queued.targets.end());
  for (std::int64_t i = 0; i < rows; ++i)
    iid_copy_.push_back(is_iid(static_cast<std::size_t>(i)) ? 1 : 0);
  iid_copy_.insert(iid_copy_.end(), queued.iid.begin(), queued.iid.end());
  logits = {logit_copy_.data(), logits.dtype, {total, classes}};
  targets = target_copy_;
  iid = iid_copy_;
}

}  // namespace tutti::internal::losses
