#include "support/worlds.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include <tutti/backend/backend_table.hpp>

namespace tutti::test {

std::string to_string(const World& world) {
  std::string name = world.backend;
  for (char& c : name)
    if (c == ':' || c == '+') c = '_';
  return name + (world.checked ? "_checked_w" : "_normal_w") + std::to_string(world.size);
}

std::ostream& operator<<(std::ostream& out, const World& world) {
  return out << to_string(world);
}

namespace {

bool runs_here(const BackendEntry& entry) {
  return entry.unavailable().empty() && entry.serves({});  // The suite names no device.
}

/// Every backend of the table that can run here; hier over several of them.
std::vector<std::string> names_of_backends() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : backends())
    if (runs_here(entry) && entry.name != "hier") names.emplace_back(entry.name);
  const auto found = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const auto& [inner, outer] : {std::pair("local", "local"),
                                     {"local", "gloo"},
                                     {"shm", "gloo"},
                                     {"shm", "tcp"},
                                     {"shm", "ucx"}})
    if (found(inner) && found(outer)) names.push_back(std::string("hier:") + inner + "+" + outer);
  return names;
}

}  // namespace

std::vector<World> worlds(std::initializer_list<int> sizes) {
  std::vector<World> all;
  const bool has_three = std::ranges::find(sizes, 3) != sizes.end();
  const auto runs = [&](int size) { return !reduced() || size < 2 || size == 3 || !has_three; };
  for (const auto& name : names_of_backends())
    for (const bool checked : {false, true})
      for (const int size : sizes)
        if (runs(size)) all.push_back({name, size, checked});
  return all;
}

std::vector<World> worlds_of_several() {
  return worlds({2, 3, 4});
}

std::vector<World> worlds_that_compare() {
  std::vector<World> all = worlds_of_several();
  std::erase_if(all, [](const World& world) {
    return world.backend != "local" && world.backend != "shm" && !world.checked;
  });
  return all;
}

std::vector<World> worlds_that_refuse() {
  std::vector<World> all = worlds_of_several();
  std::erase_if(all, [](const World& world) {
    return world.backend != "local" && world.backend != "shm" && world.backend != "gloo" &&
           world.backend != "tcp" && world.backend != "ucx" && !is_hier(world.backend) &&
           !world.checked;
  });
  return all;
}

std::string backend_here(const std::string& backend) {
  return backend.ends_with("ucx") ? backend + ":shm" : backend;
}

bool is_hier(const std::string& backend) {
  return backend.starts_with("hier:");
}

bool reduced() {
  const char* value = std::getenv("TUTTI_TEST_REDUCED");
  return value != nullptr && std::string_view(value) != "0" && *value != '\0';
}

double patience() {
  if (reduced()) return 5;
  // Means of 1, 5 and 15 minutes, then how many of all threads can run now.
  double minute = 0, five_minutes = 0, quarter_hour = 0, now = 0;
  std::ifstream("/proc/loadavg") >> minute >> five_minutes >> quarter_hour >> now;
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  return std::clamp(std::max(minute, now) / cores, 1.0, 5.0);
}

bool everything() {
  const char* value = std::getenv("TUTTI_TEST_REDUCED");
  return value != nullptr && std::string_view(value) == "0";
}

bool always_order_fixed(const std::string& backend) {
  return backend == "local" || backend == "shm";
}

namespace {

/// The backend nccl without kernels of its own; over the double it always has some.
bool is_bare_nccl(const std::string& backend) {
  return !TUTTI_KERNELS && (backend == "nccl" || backend == "nccl_gpu" || backend == "nccl_copies");
}

}  // namespace

bool can_fix_order(const std::string& backend) {
  return !is_bare_nccl(backend);
}

bool reproduces(const std::string& backend) {
  return !backend.starts_with("nccl");
}

bool reduces(const std::string& backend, DType dtype, ReduceOp::Kind kind) {
  using Kind = ReduceOp::Kind;
  if (!is_bare_nccl(backend)) return true;
  if (is_complex(dtype)) return kind == Kind::sum || kind == Kind::avg || kind == Kind::premul_sum;
  if (dtype == DType::i16 || dtype == DType::u16) return false;
  if (dtype == DType::boolean || (is_float(dtype) && size_of(dtype) == 1)) return false;
  if (kind == Kind::min || kind == Kind::max) return is_integer(dtype);
  if (kind == Kind::avg || kind == Kind::premul_sum) return is_float(dtype);
  return kind == Kind::sum || kind == Kind::prod;
}

bool shares_fate(const std::string& backend) {
  return backend == "gloo" || backend == "tcp" || backend == "ucx" || backend == "gloo_gpu" ||
         backend == "gloo_staged_double" || backend.ends_with("+gloo") ||
         backend.ends_with("+tcp") || backend.ends_with("+ucx");
}

}  // namespace tutti::test
