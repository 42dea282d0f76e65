#pragma once

#include <memory>
#include <string>

#include <tutti/backend/backend.hpp>

namespace tutti::internal {

/// Checked mode: a decorator that compares every call of all ranks through the store before the
/// inner backend sees it.
std::unique_ptr<Backend> make_checked(std::unique_ptr<Backend> inner, std::shared_ptr<Store> store,
                                      const std::string& group, int rank, int size);

}  // namespace tutti::internal
