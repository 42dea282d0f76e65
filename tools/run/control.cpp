#include "run/control.hpp"

#include <utility>

#include <fmt/format.h>

namespace tutti::tool {

Control::Control(std::shared_ptr<Store> store, int rank, int size, std::chrono::nanoseconds timeout)
    : store_(std::move(store)), rank_(rank), size_(size), timeout_(timeout) {}

std::vector<std::string> Control::collect(std::string_view text) {
  const int round = round_++;
  if (rank_ != 0) {
    store_->set(fmt::format("{}/{}", round, rank_), text);
    return {};
  }
  std::vector<std::string> texts{std::string(text)};
  const auto deadline = Deadline::after(timeout_);
  for (int rank = 1; rank < size_; ++rank) {
    const std::string key = fmt::format("{}/{}", round, rank);
    texts.push_back(store_->get_text(key, deadline));
    store_->erase(key);
  }
  return texts;
}

}  // namespace tutti::tool
