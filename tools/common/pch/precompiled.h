// Compiled once for all sources of the tool (cpp_pch). Each source includes what it needs all the same.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/process_group.hpp>
