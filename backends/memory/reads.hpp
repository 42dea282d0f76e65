#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <tutti/backend/op.hpp>

#include "thresholds.hpp"

namespace tutti::backend::memory {

/// Copies from the memory of another process. False if the system does not permit it, or if the
/// memory is not there.
bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// A number for each of the two ways of private arrays.
struct Ways {
  double slots;
  double reads;
};

/// The copies of a block that follow each other in a collective on so many ranks and cores: those
/// of the rank with the most, or an equal share of all copies for each core.
Ways copies_in_a_row(Operation kind, int ranks, std::size_t cores) noexcept;
/// The operation whose test has the costs of `kind`: broadcast, in which a rank writes or reads, or
/// all_gather, in which each rank does both.
Operation tested_for(Operation kind) noexcept;
/// True if reads take less time in `kind`, by the times of a test of tested_for(kind).
bool reads_gain(Operation kind, int ranks, std::size_t cores, const Ways& times) noexcept;

/// Decides whether ranks read the private arrays in the memory of their peers' processes, instead
/// of copying them through slots: for each operation and each size of tested_reads. The first call
/// that needs a decision begins a test, whose result is the same on all ranks (calibration.cpp).
class ReadChoice {
 public:
  enum class Permission : std::uint8_t { unknown, never, always, tested };
  static constexpr std::array kinds{Operation::broadcast, Operation::scatter, Operation::gather,
                                    Operation::all_gather, Operation::all_to_all};

  /// @throws Error invalid_argument if TUTTI_SHM_READS is neither 0 nor 1.
  ReadChoice();

  /// TUTTI_SHM_READS, if it is set.
  std::optional<bool> wanted() const noexcept { return wanted_; }
  Permission permission() const noexcept { return permission_; }
  /// Has no effect after give_up().
  void permit(Permission permission) noexcept {
    if (permission_ != Permission::never) permission_ = permission;
  }
  /// On all ranks: the memory of an array could not be read.
  void give_up() noexcept { permission_ = Permission::never; }

  /// True if blocks of so many bytes are read; nothing: a test decides.
  std::optional<bool> reads(Operation kind, std::size_t block) const noexcept;
  /// The bytes of the blocks in the test that decides.
  static std::size_t tested_bytes(std::size_t block) noexcept;
  /// By the test of such blocks and of tested_for(kind).
  void set(Operation kind, std::size_t block, bool reads) noexcept;

 private:
  static std::size_t place(Operation kind, std::size_t block) noexcept;

  std::optional<bool> wanted_;
  Permission permission_ = Permission::unknown;
  std::array<std::optional<bool>, kinds.size() * tested_reads.size()> decided_;
};

/// A table of the decisions, for `tutti info`.
std::string describe_reads(const ReadChoice& choice);

}  // namespace tutti::backend::memory
