// What nearly every file of the suite includes, compiled once (cpp_pch). Each file includes what it
// needs all the same.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/cells.hpp"
