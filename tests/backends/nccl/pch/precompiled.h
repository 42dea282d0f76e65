// Headers that nearly every file of the tests includes, compiled once (cpp_pch). Each file includes what it
// needs all the same.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backends/nccl/groups.hpp"
