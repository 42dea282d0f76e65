#include "errors.hpp"

#include <string_view>

#include <fmt/format.h>

namespace tutti::backend::nccl {

Error nccl_error(const NcclApi& nccl, ncclResult_t code, const char* call) {
  const char* text = nccl.get_last_error(nullptr);
  const std::string_view last = text == nullptr ? "" : text;
  const auto errc = code == ncclRemoteError ? Errc::peer_lost : Errc::backend;
  return {errc, fmt::format("{} failed: {}{}{}", call, nccl.get_error_string(code),
                            last.empty() ? "" : "; NCCL says: ", last)};
}

}  // namespace tutti::backend::nccl
