#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

/// What a child process left behind.
struct ChildEnd {
  std::string output;  ///< What `body` returned, or "threw <what>".
  bool ended = false;  ///< By itself and in time; otherwise it was killed.
};

/// Forks `count` children that run body(0), body(1), ... at the same time and end without
/// destroying what they inherited; waits for all, `limit` at the most.
std::vector<ChildEnd> in_children(int count, const std::function<std::string(int child)>& body,
                                  std::chrono::seconds limit = std::chrono::seconds(30));

/// One child.
ChildEnd in_child(const std::function<std::string()>& body);

}  // namespace tutti::test
