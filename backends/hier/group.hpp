#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <tutti/backend/op.hpp>

#include "backend/failing_group.hpp"

namespace tutti::backend::hier {

/// A hier group, shared with the messages that outlive its backend. An error that breaks one of its
/// parts breaks all.
class Group final : public internal::FailingGroup {
 public:
  Group(const std::string& name, const std::shared_ptr<Store>& store, int rank, int size)
      : FailingGroup(store, rank, size), name_(name), rank_(rank), size_(size) {}

  int size() const noexcept { return size_; }

  /// `stop` ends the calls of all parts; `ended` is called once, with the cause. Neither is called
  /// after leave().
  void on_failure(std::function<void(const Error& why)> stop,
                  std::function<void(const Error& cause)> ended);
  /// A part has broken. A lost rank breaks the group: calls may wait in another part, which does
  /// not notice. All other errors are those of calls in the part.
  void part_failed(const Error& why) noexcept;
  /// Leaves the group.
  void leave() noexcept;
  /// The error of the message `op` that ended with `error` in a part; breaks the group if it broke
  /// the part.
  Error error_of_message(const Error& error, const Op& op) noexcept;

 private:
  void stop(const Error& why) noexcept override;
  void on_broken(const Error& cause) noexcept override;

  const std::string name_;
  const int rank_;
  const int size_;
  std::mutex hooks_mutex_;
  std::function<void(const Error&)> stop_;
  std::function<void(const Error&)> ended_;
};

}  // namespace tutti::backend::hier
