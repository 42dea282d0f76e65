#pragma once

#include <nccl.h>

#include <string>
#include <string_view>

namespace tutti::backend::nccl {

/// The settings of a group's communicators and of its stream: the text after "nccl:" in
/// GroupOptions::backend. A value type.
struct Settings {
  std::string name{};      ///< The group's, which profilers show (NCCL 2.27).
  std::string net_name{};  ///< Empty: NCCL chooses.
  int priority = 0;        ///< Of the group's stream; CUDA clamps it.
  int min_ctas = NCCL_CONFIG_UNDEF_INT;
  int max_ctas = NCCL_CONFIG_UNDEF_INT;
  int cga_cluster_size = NCCL_CONFIG_UNDEF_INT;
  int traffic_class = NCCL_CONFIG_UNDEF_INT;
  int cta_policy = NCCL_CONFIG_UNDEF_INT;

  /// Of "max_ctas=8,priority=-1". @throws Error invalid_argument for an unknown
  /// name or a value that is no integer; unsupported if the nccl.h of the build lacks the setting.
  static Settings of(std::string_view text);
  /// The settings of the communicators, as of() reads them: without the stream's priority, in one
  /// order. They have to be equal on all ranks. Empty if there are none.
  std::string of_communicators() const;
  /// A non-blocking communicator with these settings. The result points to this object.
  ncclConfig_t config() const;
};

}  // namespace tutti::backend::nccl
