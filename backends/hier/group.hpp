#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/failing_group.hpp"
#include "levels.hpp"

namespace tutti::backend::hier {

/// Renumbers the ranks in an error of a part of the group: in its text, in Error::Where, and the
/// name of the group. `ranks`: the ranks of the whole group, by rank of the part.
Error renumbered(const Error& error, const std::string& group, std::span<const int> ranks);
std::string renumbered(std::string_view text, std::span<const int> ranks);

/// A hier group, shared with the messages that outlive its backend. An error that breaks one of its
/// parts breaks all.
class Group final : public internal::FailingGroup {
 public:
  Group(const std::shared_ptr<Store>& store, std::string name, int rank, int size)
      : FailingGroup(store, rank, size), name_(std::move(name)), rank_(rank), size_(size) {}

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// `stop` ends the calls of all parts; `ended` is called once, with the cause. Neither is called
  /// after leave().
  void on_failure(std::function<void(std::string_view why)> stop,
                  std::function<void(const Error& cause)> ended);
  /// Leaves the group.
  void leave() noexcept;

 private:
  void stop(const Error& why) noexcept override;
  void on_broken(const Error& cause) noexcept override;

  const std::string name_;
  const int rank_;
  const int size_;
  std::mutex hooks_mutex_;
  std::function<void(std::string_view)> stop_;
  std::function<void(const Error&)> ended_;
};

}  // namespace tutti::backend::hier
