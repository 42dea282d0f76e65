#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "thresholds.hpp"

namespace tutti::backend::memory {

/// Copies from the memory of another process. False if the system does not permit it, or if the
/// memory is not there.
bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// The bytes of a block from which ranks read private arrays in the memory of their peers'
/// processes, instead of copying them through slots. A test in the first call that could use it
/// decides, for all ranks alike (calibration.cpp).
class ReadThreshold {
 public:
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  /// @throws Error invalid_argument if TUTTI_SHM_READS is neither 0 nor 1.
  ReadThreshold();

  /// TUTTI_SHM_READS, if it is set.
  std::optional<bool> wanted() const noexcept { return wanted_; }
  bool is_known() const noexcept { return known_; }
  /// Before it is known: of the smallest block that begins the test. Equal on all ranks.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Has no effect on the number after give_up().
  void set(std::size_t bytes) noexcept {
    known_ = true;
    if (bytes_ != never) bytes_ = bytes;
  }
  /// On all ranks: the memory of an array could not be read.
  void give_up() noexcept { bytes_ = never; }

 private:
  std::optional<bool> wanted_;
  bool known_ = false;
  std::size_t bytes_ = tested_reads[0];
};

/// The times of a read and of two copies here, for `tutti info`.
std::string describe_reads();

}  // namespace tutti::backend::memory
