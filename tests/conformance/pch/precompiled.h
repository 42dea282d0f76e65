// Headers that nearly every file of the suite includes, compiled once (cpp_pch); files still
// include every header they use.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/cells.hpp"
