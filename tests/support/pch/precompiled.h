// Headers that tests of several folders include, compiled once per target (cpp_pch). Each file includes what it needs all the
// same.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/training.hpp>
