#pragma once

namespace tutti::internal {

/// The value of the environment variable `name`: 1 is true, 0 is false. `otherwise` if it is not
/// set or empty. @throws Error invalid_argument for every other value.
bool environment_switch(const char* name, bool otherwise);

}  // namespace tutti::internal
