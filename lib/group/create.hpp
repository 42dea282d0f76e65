#pragma once

#include <memory>

#include <tutti/backend/backend_table.hpp>

namespace tutti::internal {

/// The choice for a group. Collective, for "auto" and ranks that may be processes. @throws Error.
BackendChoice choose_for(const GroupOptions& options);

/// Makes this rank's backend. @throws Error.
std::unique_ptr<Backend> make_backend(const BackendChoice& choice, const GroupOptions& options);

}  // namespace tutti::internal
