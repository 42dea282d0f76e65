#pragma once

#include <chrono>
#include <span>

namespace tutti::backend::mesh {

/// Makes the kernel end each connection whose peer's machine has not answered for `time`. A peer
/// that does not read keeps its connection only for that time if the kernel's buffers are full.
void end_unanswered(std::span<const int> descriptors, std::chrono::nanoseconds time) noexcept;

/// The congestion control reno. A network within one machine has no slow link whose queue bbr could
/// keep short, and bbr's pacing costs time there. No effect if the kernel refuses it.
void use_reno(int descriptor) noexcept;

/// Blocks until the peers' machines have acknowledged all sent data, because closing a socket with
/// unread input drops its unsent data. Gives up after 1 s without progress, or after 50 ms if only
/// acknowledgements are missing.
void drain(std::span<const int> descriptors) noexcept;

}  // namespace tutti::backend::mesh
