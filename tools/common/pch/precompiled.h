// Compiled once for all sources of the tool (cpp_pch); sources still include every header they use.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tutti/process_group.hpp>
