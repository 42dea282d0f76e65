#pragma once

#include <chrono>

namespace tutti::tool {

/// Processor time that this thread, or all threads of this process, have used so far, in user and
/// system mode.
std::chrono::nanoseconds thread_processor_time();
std::chrono::nanoseconds process_processor_time();

}  // namespace tutti::tool
