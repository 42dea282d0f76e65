#pragma once

#include <string>

#include <tutti/store/token.hpp>

#include "run/child.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The token of a job that this process launches: of the user's file, or a new one for a job on one
/// node. A new token is in memory alone: its file is a descriptor of this process under /proc,
/// which ends with it. Empty for several nodes without a file, and without OpenSSL.
class JobToken {
 public:
  /// @throws Failure if the file cannot be used.
  explicit JobToken(const LaunchOptions& options);

  const StoreToken& token() const noexcept { return token_; }
  /// For TUTTI_TOKEN_FILE of the ranks; empty without a token.
  const std::string& file() const noexcept { return file_; }

 private:
  StoreToken token_{};
  std::string file_{};
  Descriptor memory_{};
};

}  // namespace tutti::tool
