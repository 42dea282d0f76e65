#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace tutti::backend::memory {

class Member;

/// Copies from the memory of another process. False if the system does not permit it, or if the
/// memory is not there.
bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// The bytes of a block from which ranks read private arrays in the memory of their peers'
/// processes, instead of copying them through slots. A test in the first call that could use it
/// decides, for all ranks alike.
class ReadThreshold {
 public:
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  /// @throws Error invalid_argument if TUTTI_SHM_READS is neither 0 nor 1.
  ReadThreshold();

  bool is_known() const noexcept { return known_; }
  /// Before it is known: of the smallest block that begins the test. Equal on all ranks.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Finds the number, in a call of all ranks. `able`: this rank can read the memory of its peers.
  /// @throws Error of Member.
  void find(Member& member, bool able);
  /// On all ranks: the memory of an array could not be read.
  void give_up() noexcept { bytes_ = never; }

 private:
  bool known_ = false;
  const std::int64_t permitted_;
  std::size_t bytes_;
};

/// How long a read takes here, for `tutti info`.
std::string describe_reads();

}  // namespace tutti::backend::memory
