#pragma once

#include <string>

#include <tutti/backend.hpp>
#include <tutti/process_group.hpp>

namespace tutti::tool {

/// What this rank talks over: "tcp/eth0". Empty when the ranks share memory, or there is one.
std::string transport_of(const BackendChoice& backend, const GroupOptions& group);

}  // namespace tutti::tool
