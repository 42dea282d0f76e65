#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "memory/member.hpp"

namespace tutti::backend::shm {

using namespace memory;

/// Finds the other ranks through the store; rank 0 makes the segment and passes it to them. Returns
/// when all ranks have mapped it: then, and only then, it returns on all ranks.
/// @throws Error timeout at BackendInit::timeout, with the missing ranks; unsupported if ranks are
///         on different hosts; resource_exhausted; peer_lost if a rank has died. If a rank gives
///         up, all ranks throw its error.
/// `watch`: called while this rank waits for others whose processes it does not know yet; may throw
/// to end the wait.
std::shared_ptr<Member> join(const BackendInit& init, std::function<void()> watch = {});

}  // namespace tutti::backend::shm
