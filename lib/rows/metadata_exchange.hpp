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

/// What this rank brings to a gather whose sizes only it knows.
struct GatherRequest {
  static constexpr std::size_t most = std::size_t{64} << 10;
  std::string_view caller{};                  ///< The public function, equal on all ranks.
  std::span<const ConstTensorView> arrays{};  ///< At most MetadataExchange::max_arrays.
  bool any_shape = false;                     ///< Not only the first dimension may differ.
  int root = -1;
  std::size_t small = most;  ///< Up to so many bytes are inlined; not above most.
  bool only_small = false;   ///< gather_arrays: nothing is gathered if a rank has more than that.
  bool in_host_memory = false;  ///< The arrays are, whatever the group's device.
  /// Checks this rank's arguments and may set its arrays. Runs first; its Error is one on every
  /// rank.
  std::function<void(GatherRequest&)> check{};
  std::optional<Error> refused{};  ///< The Error of `check`, once it has run.
  /// More that has to be equal on all ranks, in words: options.
  std::string_view agree{};
};

/// The request after its check.
GatherRequest checked(GatherRequest request);

/// One message from every rank to every other one: a header, the shape of each array, and the
/// arrays themselves while they are small. After it all ranks know the same, so they refuse alike.
///
/// In bytes: 27, the caller, the words to agree on or of the refusal, per array 5 and 8 for each
/// dimension, then the arrays.
class MetadataExchange {
 public:
  static constexpr std::size_t max_arrays = 32;

  /// Collective. @throws Error: mismatch, or that of this rank's own check.
  MetadataExchange(ProcessGroup& group, const GatherRequest& unchecked, const CallOptions& options);

  const Shape& shape(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].shapes[array];
  }
  /// How many rows the first array has on each rank.
  RowLayout layout() const;
  /// Whether the arrays of all ranks are inlined.
  bool complete() const noexcept { return complete_; }
  /// Whether the arrays of each rank have this many bytes at most.
  bool within(std::size_t bytes) const;
  const std::byte* data(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].data[array];
  }

  /// What one rank wrote. Its strings and arrays lie in the bytes that came.
  struct Message {
    std::uint32_t version = 0;
    bool refused = false;
    std::string_view caller{};
    std::string_view words{};  ///< GatherRequest::agree; of a refusal, why.
    bool any_shape = false;
    int root = -1;
    bool inlined = false;  ///< The arrays are in the message.
    std::vector<DType> dtypes{};
    std::vector<Shape> shapes{};
    std::vector<const std::byte*> data{};
  };

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::vector<Message> messages_;
  bool complete_ = true;
};

/// Throws this rank's refusal, with the caller as its place unless it has one.
[[noreturn]] void throw_refusal(const Error& why, ProcessGroup& group, std::string_view caller);

/// An Error of this function on this group.
Error gather_error(Errc code, ProcessGroup& group, std::string_view caller, int rank,
                   const std::string& message);

}  // namespace tutti::internal
