#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/store/store.hpp>

namespace tutti::tool {

/// A channel from every rank to rank 0. Does not use the group under test, so that reports of wrong
/// data do not depend on that group. Used only between measurements.
class Control {
 public:
  Control(std::shared_ptr<Store> store, int rank, int size, std::chrono::nanoseconds timeout);

  /// Sends a text of every rank to rank 0, where it returns all texts in rank order; on other ranks
  /// it returns none. All ranks call it in the same order. @throws Error timeout on rank 0 if a
  /// rank sends none.
  std::vector<std::string> collect(std::string_view text);

 private:
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  std::chrono::nanoseconds timeout_;
  int round_ = 0;
};

}  // namespace tutti::tool
