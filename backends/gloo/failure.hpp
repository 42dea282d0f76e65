#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

namespace tutti::backend::gloo {

/// What a rank knows when its mesh fails.
struct Report {
  Error cause;               ///< What counts if nobody else was first.
  std::string call{};        ///< The collective this rank is in; empty: none.
  std::vector<int> ranks{};  ///< Ask who else is in it: the mesh ranks of the group, by group rank.
  int lost = -1;             ///< The mesh rank whose connection ended.
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// Why a connection was ended by its peer.
enum class Ending : std::uint8_t {
  left,    ///< On purpose, after its last call.
  late,    ///< A call reached its deadline somewhere, and the ranks are asked where they are.
  failed,  ///< Aborted, or died.
};

/// How the ranks of a mesh agree, through the store, on what broke it. The rank that comes first
/// says what it was; the others say which call they were in, and read it.
class Agreement {
 public:
  Agreement(std::shared_ptr<Store> store, int rank);
  /// Says that this rank has failed. Before its connections end, so that peers know to look here.
  /// True when it is the first.
  bool announce(const Report& report) const noexcept;
  /// What counts. Blocks about a second at the most. Without the store it is the rank's own cause.
  Error settle(const Report& report, bool first) const noexcept;
  /// Where this rank is, for a peer that calls the roll.
  void tell(const std::string& where) const noexcept;
  /// This rank is about to leave on purpose.
  void leave() const noexcept;
  /// Why the connection to this mesh rank ended; `left` also when there is no store to ask.
  Ending why_ended(int rank) const noexcept;

 private:
  Error find_cause(const Report& report) const;
  Error call_the_roll(const Report& report) const;

  std::shared_ptr<Store> store_;
  int rank_;
};

}  // namespace tutti::backend::gloo
