#pragma once

#include <torch/version.h>

// Differences between the versions of torch that pyproject.toml names.

/// `override` of a function that c10d's classes have from torch 2.14 on. Before, nothing calls it.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
#define TUTTI_OVERRIDE_FROM_TORCH_2_14 override
#else
#define TUTTI_OVERRIDE_FROM_TORCH_2_14
#endif
