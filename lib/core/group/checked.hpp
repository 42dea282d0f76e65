#pragma once

#include <memory>
#include <string>

#include <tutti/backend/backend.hpp>

namespace tutti::internal {

/// Checked mode: a decorator that compares the calls of all ranks through the group's `store`. It
/// compares a collective before the inner backend gets it, and a send or receive in host memory
/// while the caller waits for it.
std::unique_ptr<Backend> make_checked(std::unique_ptr<Backend> inner, std::shared_ptr<Store> store,
                                      const std::string& group, int rank, int size);

}  // namespace tutti::internal
