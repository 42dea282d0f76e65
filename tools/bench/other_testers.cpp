#include "bench/other_testers.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace tutti::tool {
namespace {

using Alias = NameOfOthers;

template <std::size_t N>
std::string_view without_alias(const std::array<Alias, N>& aliases, std::string_view name) {
  for (const auto& [alias, own] : aliases)
    if (alias == name) return own;
  return name;
}

/// Options of nccl-tests without an equal here, and options of later releases.
constexpr std::array<Alias, 14> not_here{
    Alias{"-t,--nthreads", "-n is the number of ranks, --threads-per-proc makes them threads"},
    {"-g,--ngpus", "a rank has one device; -n is the number of ranks"},
    {"-N,--run_cycles", "--watch measures until Ctrl-C, or for --max-total"},
    {"-p,--parallel_init", "tutti bench create measures how long a group takes to make"},
    {"-z,--blocking", "--mode latency waits for each call"},
    {"-y,--stream_null", "calls are on the default stream"},
    {"-G,--cudagraph", "calls are not captured into graphs; leave it out"},
    {"-C,--report_cputime", "bench step shows the processor time of communication"},
    {"-R,--local_register", "arrays are not registered; leave it out"},
    {"--devices", ""},
    {"--groups", ""},
    {"--host-overhead", ""},
    {"--peak", ""},
    {"--svg", ""}};

}  // namespace

std::optional<DType> find_dtype(std::string_view name) noexcept {
  static constexpr std::array<Alias, 18> aliases{
      Alias{"float", "f32"},  {"int16", "i16"},      {"uint16", "u16"},  {"uint32", "u32"},
      {"uint64", "u64"},      {"double", "f64"},     {"half", "f16"},    {"float16", "f16"},
      {"fp16", "f16"},        {"bfloat16", "bf16"},  {"float32", "f32"}, {"float64", "f64"},
      {"int8", "i8"},         {"uint8", "u8"},       {"int32", "i32"},   {"int64", "i64"},
      {"fp8_e4m3", "f8e4m3"}, {"fp8_e5m2", "f8e5m2"}};
  return parse_dtype(without_alias(aliases, name));
}

const Collective* find_by_any_name(std::string_view name) {
  if (name.starts_with("osu_")) name.remove_prefix(4);
  if (name.ends_with("_perf")) name.remove_suffix(5);
  static constexpr std::array<Alias, 11> aliases{
      Alias{"bcast", "broadcast"},       {"init", "create"},           {"exscan", "exclusive_scan"},
      {"allgatherv", "all_gather_rows"}, {"sendrecv", "send_recv"},    {"latency", "ping_pong"},
      {"multi_lat", "ping_pong"},        {"bw", "bandwidth"},          {"mbw_mr", "bandwidth"},
      {"message_rate", "bandwidth"},     {"bibw", "two_way_bandwidth"}};
  name = without_alias(aliases, name);
  const auto spelled = [](std::string_view text) {
    std::string letters(text);
    std::erase(letters, '_');
    return letters;
  };
  for (const Collective& collective : collectives())
    if (spelled(collective.name) == spelled(name)) return &collective;
  return nullptr;
}

std::string_view own_rank_agg(std::string_view name) noexcept {
  static constexpr std::array<Alias, 4> numbers{
      Alias{"0", "rank0"}, {"1", "mean"}, {"2", "min"}, {"3", "max"}};
  return without_alias(numbers, name);
}

std::span<const NameOfOthers> options_not_here() noexcept {
  return not_here;
}

}  // namespace tutti::tool
