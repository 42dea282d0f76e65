#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/format.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The code of an error: what the caller can do about it, not where it came from.
enum class Errc : std::uint8_t {
  invalid_argument,    ///< Fix the call. Nothing was sent.
  count_overflow,      ///< The sizes do not fit in 63 bits. Fix the call. Nothing was sent.
  mismatch,            ///< Ranks disagree about a call. Fix the program.
  unsupported,         ///< This backend or build cannot do it. Choose another one.
  not_initialized,     ///< There is no group yet. Call init() or ProcessGroup::create().
  timeout,             ///< A deadline passed. Rebuild the group, or allow more time.
  peer_lost,           ///< A rank left or its connection broke. Rebuild the group.
  aborted,             ///< The group failed earlier or was aborted. Rebuild the group.
  resource_exhausted,  ///< Memory, descriptors or a bound of the library ran out.
  forked,              ///< The group was made before fork(). Make a new one in the child.
  backend,             ///< NCCL, CUDA, Gloo or the OS failed; see what().
};

/// "invalid_argument", ...
std::string_view name_of(Errc code) noexcept;

/// The category of Errc in std::error_code, "tutti". Its values are those of tutti_status in C, its
/// messages the names of the codes.
const std::error_category& error_category() noexcept;
/// The std::error_code of a code: its value is that of Errc plus 1.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code) + 1, error_category()};  // 0 is no error.
}

/// The exception type of all errors that the library reports. A value type; copying never throws.
class Error : public std::runtime_error {
 public:
  /// The place of the error. Empty and negative fields are unknown.
  struct Where {
    std::string group{};         ///< Name of the group, "world/0.1".
    std::string operation{};     ///< "all_reduce".
    std::int64_t seq = -1;       ///< The call's number in its group.
    int rank = -1;               ///< The rank that caused it.
    std::vector<int> missing{};  ///< The ranks that had not entered the call.
    bool earlier = false;        ///< The group broke before; what() has the first cause.
  };

  Error(Errc code, const std::string& message);  ///< The place is unknown.
  /// what() is, for example, "timeout: all_reduce #17 on group 'world': <message>"; unknown parts
  /// of `where` are left out.
  Error(Errc code, const std::string& message, Where where);

  Errc code() const noexcept { return code_; }             ///< What the caller can do about it.
  const Where& where() const noexcept { return *where_; }  ///< Valid while a copy of this lives.
  /// The message without the place.
  const std::string& message() const noexcept { return *message_; }

 private:
  Errc code_;
  std::shared_ptr<const Where> where_;
  std::shared_ptr<const std::string> message_;
};

/// Throws Error. `message` should have the values, and both sides of a comparison.
[[noreturn]] void fail(Errc code, const std::string& message);

}  // namespace tutti

/// @namespace std
/// Specializations for the types of tutti.

/// Converts an Errc to std::error_code where one is expected.
template <>
struct std::is_error_code_enum<tutti::Errc> : std::true_type {};
