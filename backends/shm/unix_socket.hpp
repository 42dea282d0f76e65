#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "memory/descriptor.hpp"

// Unix sockets that pass a file to another process. None of these functions blocks.

namespace tutti::backend::shm {

using namespace memory;

/// 32 random letters. @throws Error backend.
std::string random_text();

/// Listens at an address with a random name, which is in no file system and ends with the process.
/// Every process of the network namespace can find it in /proc/net/unix.
/// @throws Error resource_exhausted, backend.
Descriptor listen_anywhere(int backlog, std::string& address);

/// The next connection; not open if there is none. @throws Error resource_exhausted, backend.
Descriptor accept_connection(const Descriptor& listener);

/// The connection to an address of listen_anywhere(). Not open if the listener has no room for it
/// now; empty if nothing listens. @throws Error resource_exhausted, backend.
std::optional<Descriptor> connect_to(std::string_view address);

/// True if the kernel says that the peer is this process of this user. `process` negative: any
/// process, see Membership::ids.
bool is_process(const Descriptor& socket, int process, std::string_view user);

/// The proof that the peer has read the store: a random_text() that the listener published there.
bool send_proof(const Descriptor& socket, std::string_view proof);
/// False if other bytes, or none, have come.
bool receive_proof(const Descriptor& socket, std::string_view proof);

bool send_file(const Descriptor& socket, const Descriptor& file);
/// The file of send_file(); not open if none has come. @throws Error resource_exhausted.
Descriptor receive_file(const Descriptor& socket);

}  // namespace tutti::backend::shm
