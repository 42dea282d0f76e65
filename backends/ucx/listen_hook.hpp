#pragma once

namespace tutti::backend::ucx {

/// Makes `before` the first to see every socket on which a loaded library is about to listen; if it
/// does not return 0, the call fails. The library's entry for listen() is replaced for good. False
/// if it has none.
bool call_before_listen(const char* library, int (*before)(int descriptor));

}  // namespace tutti::backend::ucx
