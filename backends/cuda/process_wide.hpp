#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace tutti::backend::cuda {

/// The T of `key`, made of `args` by the first call and kept for as long as the process runs.
/// Called from any thread.
template <typename T, typename Key, typename... Args>
T& process_wide(const Key& key, Args&&... args) {
  static std::mutex guard;
  static auto& all = *new std::map<Key, T>;
  const std::lock_guard lock(guard);
  return all.try_emplace(key, std::forward<Args>(args)...).first->second;
}

}  // namespace tutti::backend::cuda
