#pragma once

namespace tutti::internal {

/// Refuses a value of TUTTI_LOG that is no level. default_logger() does not, because it also logs
/// in places that cannot throw. @throws Error invalid_argument.
void check_log_level();

}  // namespace tutti::internal
