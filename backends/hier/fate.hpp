#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/agreement.hpp"
#include "levels.hpp"

namespace tutti::backend::hier {

/// Renumbers the ranks in an error of a part of the group: in its text, in Error::Where, and the
/// name of the group. `ranks`: the ranks of the whole group, by rank of the part.
Error renumbered(const Error& error, const std::string& group, std::span<const int> ranks);
std::string renumbered(std::string_view text, std::span<const int> ranks);

/// The failure of a hier group: an error that breaks one of its parts breaks all, and the first
/// cause applies on all ranks. Called from any thread; also by messages that outlive the backend.
class Fate {
 public:
  Fate(const std::shared_ptr<Store>& store, std::string group, int rank, int size);

  const std::string& group() const noexcept { return group_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  internal::Agreement& agreement() noexcept { return agreement_; }

  /// `stop` ends the calls of all parts; `ended` is called once, with the cause. Neither is called
  /// after leave().
  void on_failure(std::function<void(std::string_view why)> stop,
                  std::function<void(const Error& cause)> ended);
  /// Leaves the group.
  void leave() noexcept;

  /// Breaks the group. Returns the first cause, which is the same on all ranks. Blocks for at most
  /// about 1 s longer than Failure::patience.
  Error fail(const internal::Failure& failure) noexcept;
  /// The same for a call that ended because a part was aborted: waits up to 2 s for the rank that
  /// found the cause.
  Error await_failure(const internal::Failure& failure) noexcept;
  std::optional<Error> cause() const;

 private:
  enum class State : std::uint8_t { up, failing, failed };

  const std::string group_;
  const int rank_;
  const int size_;
  internal::Agreement agreement_;
  std::mutex hooks_mutex_;
  std::function<void(std::string_view)> stop_;
  std::function<void(const Error&)> ended_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  State state_ = State::up;
  std::optional<Error> cause_;
};

}  // namespace tutti::backend::hier
