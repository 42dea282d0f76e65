#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/store/store.hpp>

namespace tutti::tool {

/// A way from every rank to rank 0 that does not use the group under test: results about wrong
/// data do not travel over what may have made it wrong. Between measurements only.
class Control {
 public:
  Control(std::shared_ptr<Store> store, int rank, int size, std::chrono::nanoseconds timeout);

  /// Every rank gives a text; rank 0 gets all of them in rank order, the others nothing. All
  /// ranks call it in the same order.
  std::vector<std::string> collect(std::string_view text);

 private:
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  std::chrono::nanoseconds timeout_;
  int round_ = 0;
};

}  // namespace tutti::tool
