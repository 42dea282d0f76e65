#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/gather.hpp>

namespace tutti::internal {

/// This rank's part of a gather whose sizes are unknown to the other ranks.
struct GatherRequest {
  static constexpr std::size_t most = std::size_t{64} << 10;
  std::string_view caller{};                  ///< Name of the public function, equal on all ranks.
  std::span<const ConstTensorView> arrays{};  ///< At most MetadataExchange::max_arrays.
  bool any_shape = false;                     ///< Every dimension may differ, not only the first.
  int root = -1;
  std::size_t small = most;     ///< Limit of inlined bytes; at most `most`.
  bool only_small = false;      ///< gather_arrays: gathers nothing if a rank has more bytes.
  bool in_host_memory = false;  ///< The arrays are in host memory, for any device of the group.
  /// Checks this rank's arguments and may set its arrays. Runs first. If it throws, every rank gets
  /// an Error.
  std::function<void(GatherRequest&)> check{};
  std::optional<Error> refused{};  ///< The Error of `check`, after it has run.
  /// More properties that must be equal on all ranks, in words: options.
  std::string_view agree{};
};

/// The request after its check.
GatherRequest checked(GatherRequest request);

/// Exchange of metadata: one message from every rank to every other one, with a header, the shape
/// of each array, and small arrays inlined. All ranks then hold the same messages and take the
/// same decision.
///
/// Bytes: 27, the caller's name, the words to compare or the refusal, 5 per array and 8 per
/// dimension, then the arrays.
class MetadataExchange {
 public:
  static constexpr std::size_t max_arrays = 32;

  /// Collective. @throws Error: mismatch, or the one of this rank's own check.
  MetadataExchange(ProcessGroup& group, const GatherRequest& unchecked, const CallOptions& options);

  const Shape& shape(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].shapes[array];
  }
  /// The rows of the first array on each rank.
  RowLayout layout() const;
  /// True if the arrays of all ranks are inlined.
  bool complete() const noexcept { return complete_; }
  /// True if each rank's arrays have at most this many bytes.
  bool within(std::size_t bytes) const;
  const std::byte* data(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].data[array];
  }

  /// A message of one rank. Its strings and arrays point into the received bytes.
  struct Message {
    std::uint32_t version = 0;
    bool refused = false;
    std::string_view caller{};
    std::string_view words{};  ///< GatherRequest::agree, or the text of a refusal.
    bool any_shape = false;
    int root = -1;
    bool inlined = false;  ///< The arrays are inlined.
    std::vector<DType> dtypes{};
    std::vector<Shape> shapes{};
    std::vector<const std::byte*> data{};
  };

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::vector<Message> messages_;
  bool complete_ = true;
};

/// Throws this rank's refusal. Adds the caller as its place if it has none.
[[noreturn]] void throw_refusal(const Error& why, ProcessGroup& group, std::string_view caller);

/// An Error of this function on this group.
Error gather_error(Errc code, ProcessGroup& group, std::string_view caller, int rank,
                   const std::string& message);

}  // namespace tutti::internal
