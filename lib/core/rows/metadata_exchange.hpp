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

/// This rank's part of a gather. The other ranks do not know its sizes.
struct GatherRequest {
  static constexpr std::size_t most = std::size_t{64} << 10;
  std::string_view caller{};                  ///< Name of the public function, equal on all ranks.
  std::span<const ConstTensorView> arrays{};  ///< At most MetadataExchange::max_arrays.
  bool any_shape = false;                     ///< All dimensions may differ, not only the first.
  int root = -1;
  std::size_t small = most;     ///< Limit of inlined bytes; at most `most`.
  bool only_small = false;      ///< For gather_arrays: gathers nothing if a rank has more.
  bool in_host_memory = false;  ///< The arrays are in host memory, for any device of the group.
  /// Checks this rank's arguments before the exchange, and may set its arrays. If it throws, every
  /// rank gets an Error.
  std::function<void(GatherRequest&)> check{};
  std::optional<Error> refused{};  ///< The Error of `check`, once it has run.
  /// Other properties that must be equal on all ranks, in words: options.
  std::string_view agree{};
};

/// Runs the request's check, and returns the request without it. `refused` is set if it threw.
GatherRequest checked(GatherRequest request);

/// Exchanges metadata: every rank sends every other rank one message with a header, the shape of
/// each array, and small arrays inlined. All ranks then hold the same messages and take the same
/// decision.
///
/// The message has 27 bytes, the caller's name, the words to compare or the refusal, 5 bytes per
/// array and 8 per dimension, then the inlined arrays. Where nothing can be inlined (on a
/// device), every message has 2880 bytes.
class MetadataExchange {
 public:
  static constexpr std::size_t max_arrays = 32;

  /// Collective. @throws Error the Error of this rank's own check; mismatch if another rank's check
  /// threw, or if the ranks made different calls.
  MetadataExchange(ProcessGroup& group, const GatherRequest& unchecked, const CallOptions& options);

  const Shape& shape(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].shapes[array];
  }
  /// Returns the rows of the first array on each rank.
  RowLayout rows() const;
  /// True if the messages of all ranks include their arrays.
  bool complete() const noexcept { return complete_; }
  /// True if no rank's arrays have more than this many bytes.
  bool within(std::size_t bytes) const;
  const std::byte* data(int rank, std::size_t array) const {
    return messages_[static_cast<std::size_t>(rank)].data[array];
  }

  /// The message of one rank. Its strings and arrays are views of the received bytes.
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

/// Throws this rank's refusal. Adds the caller as the operation if the Error has none.
[[noreturn]] void throw_refusal(const Error& why, ProcessGroup& group, std::string_view caller);

/// Makes an Error of the function `caller` on this group. `rank`: the rank to blame, or -1.
[[gnu::visibility("default")]] Error gather_error(Errc code, ProcessGroup& group,
                                                  std::string_view caller, int rank,
                                                  const std::string& message);

}  // namespace tutti::internal
