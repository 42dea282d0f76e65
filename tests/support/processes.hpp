#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

/// The output and the end of a child process.
struct ChildEnd {
  std::string output;  ///< The result of `body`, or "threw <what>".
  bool ended = false;  ///< By itself and in time; otherwise it was killed.
};

/// Forks `count` children that run body(0), body(1), ... at the same time. They end without
/// destroying inherited objects. Waits for all, for at most `limit`.
std::vector<ChildEnd> in_children(int count, const std::function<std::string(int child)>& body,
                                  std::chrono::seconds limit = std::chrono::seconds(30));

/// One child.
ChildEnd in_child(const std::function<std::string()>& body);

/// True under qemu's user mode, where limits of address space have no effect, and where a forked
/// child cannot start a thread.
bool is_emulated();

}  // namespace tutti::test
