#include "losses/row_queue.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal::losses {
namespace {

/// In front of a saved queue; a host with another byte order reads another number.
constexpr std::uint64_t magic = 0x3130515554545554;  // "TUTTUQ01"

struct Header {
  std::uint64_t magic = 0;
  std::int64_t classes = 0;
  std::int64_t queue = 0;
  std::int64_t calls = 0;
  std::int64_t next = 0;
  std::int64_t rows = 0;
  double temperature = 0;
  std::uint64_t digest = 0;  // Of everything, with this as 0.
};

std::size_t bytes_per_row(std::int64_t classes) {
  return static_cast<std::size_t>(classes) * sizeof(double) + sizeof(std::int64_t) + 1;
}

std::uint64_t digest_of(std::string state) {
  Header header;
  std::memcpy(&header, state.data(), sizeof header);
  header.digest = 0;
  std::memcpy(state.data(), &header, sizeof header);
  Hash hash;
  hash.add(state);
  return hash.value();
}

/// Takes `first` elements off the front.
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
        "the queue was filled as rank {} of {}, this call is of rank {} of {}: reset_queue(), or "
        "save() there and load() here",
        rank_, ranks_, rank, ranks);
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
  // Own rows in front of the last `queue` ones fall out: those of the queue, then new ones.
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
  Header header{.magic = magic,
                .classes = classes_,
                .queue = options_.queue,
                .calls = calls_,
                .next = next_,
                .rows = static_cast<std::int64_t>(all.size()),
                .temperature = temperature};
  std::string state(sizeof header + all.size() * bytes_per_row(classes_), '\0');
  char* to = state.data() + sizeof header;
  const auto put = [&to]<typename T>(const std::vector<T>& from) {
    if (from.empty()) return;
    std::memcpy(to, from.data(), from.size() * sizeof(T));
    to += from.size() * sizeof(T);
  };
  put(all.scores);
  put(all.targets);
  put(all.iid);
  std::memcpy(state.data(), &header, sizeof header);
  header.digest = digest_of(state);
  std::memcpy(state.data(), &header, sizeof header);
  return state;
}

double RowQueue::load(std::string_view state, int rank, int ranks) {
  Header header;
  if (state.size() >= sizeof header) std::memcpy(&header, state.data(), sizeof header);
  if (header.magic != magic)
    failf(Errc::invalid_argument, "{} bytes that are no saved state of a ranking loss",
          state.size());
  const auto body = state.size() - sizeof header;
  if (header.classes != classes_ || header.queue != options_.queue)
    failf(Errc::invalid_argument,
          "the saved loss has {} classes and a queue of {} rows, this one {} and {}",
          header.classes, header.queue, classes_, options_.queue);
  if (header.rows < 0 || header.rows > std::max<std::int64_t>(header.queue, 0) ||
      body / bytes_per_row(classes_) != static_cast<std::size_t>(header.rows) ||
      body % bytes_per_row(classes_) != 0 || header.next < header.rows || header.calls < 0 ||
      !(header.temperature > 0) || !std::isfinite(header.temperature) ||
      header.digest != digest_of(std::string(state)))
    failf(Errc::invalid_argument, "the saved state of a ranking loss is damaged ({} bytes)",
          state.size());

  // Every rank takes a part of about the same size.
  RowQueue made(classes_, options_);
  made.calls_ = header.calls;
  made.next_ = header.next;
  made.history_ = header.digest;
  made.rank_ = rank;
  made.ranks_ = ranks;
  for (int r = 0; r < ranks; ++r) {
    const auto first = header.rows * r / ranks;
    const auto count = header.rows * (r + 1) / ranks - first;
    if (count == 0) continue;
    made.segments_.push_back({header.next - header.rows + first, count, r});
    if (r != rank) continue;
    const char* from = state.data() + sizeof header;
    const auto get = [&]<typename T>(std::vector<T>& to, std::int64_t columns) {
      to.resize(static_cast<std::size_t>(count * columns));
      std::memcpy(to.data(), from + static_cast<std::size_t>(first * columns) * sizeof(T),
                  to.size() * sizeof(T));
      from += static_cast<std::size_t>(header.rows * columns) * sizeof(T);
    };
    get(made.own_.scores, classes_);
    get(made.own_.targets, 1);
    get(made.own_.iid, 1);
  }
  *this = std::move(made);
  return header.temperature;
}

}  // namespace tutti::internal::losses
