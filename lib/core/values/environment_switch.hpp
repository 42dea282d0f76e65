#pragma once

#include <cstdint>

namespace tutti::internal {

/// The value of the environment variable `name`: 1 is true, 0 is false. `otherwise` if it is not
/// set or empty. @throws Error invalid_argument for every other value.
bool environment_switch(const char* name, bool otherwise);
/// The same for a number from 0 to `most`.
std::int64_t environment_number(const char* name, std::int64_t otherwise, std::int64_t most);

}  // namespace tutti::internal
