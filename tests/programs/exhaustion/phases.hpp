#pragma once

#include <functional>
#include <span>
#include <string>

#include <tutti/process_group.hpp>

namespace tutti::test {

/// A part of a program of two ranks, in which an allocation of rank 0 fails.
struct Phase {
  std::string name;
  /// Calls `begin()` when its arrays exist; from then on an allocation fails. Returns whether the
  /// results of this rank are right. Null: the group is made.
  std::function<bool(ProcessGroup& group, const std::function<void()>& begin)> run;
  bool destroys = false;  ///< An allocation fails while the group is destroyed.
};

std::span<const Phase> phases();

}  // namespace tutti::test
