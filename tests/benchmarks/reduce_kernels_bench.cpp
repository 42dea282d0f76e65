// GB/s of memory traffic: every byte read and every byte written counts. memcpy is the yardstick.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "internal/reduce_kernels.hpp"

namespace {

using tutti::DType;
using Kind = tutti::ReduceOp::Kind;
using Fold = void (*)(DType, Kind, void*, std::span<const void* const>, std::span<const double>,
                      std::size_t) noexcept;

constexpr std::int64_t sizes[] = {std::int64_t{64} << 10, std::int64_t{16} << 20};

/// `count` arrays of `bytes`. The values are zeros: no kernel's speed depends on them. No two
/// arrays begin at the same offset into a page, which would slow down any kernel.
struct Arrays {
  Arrays(std::size_t count, std::size_t bytes) : storage(count * (bytes + 320)) {
    for (std::size_t i = 0; i < count; ++i) each.push_back(storage.data() + i * (bytes + 320));
  }
  std::vector<std::byte> storage;
  std::vector<void*> each;
};

void set_traffic(benchmark::State& state, std::int64_t arrays) {
  state.SetBytesProcessed(state.iterations() * state.range(0) * arrays);
}

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(2, bytes);
  for (auto _ : state) {
    std::memcpy(arrays.each[0], arrays.each[1], bytes);
    benchmark::ClobberMemory();
  }
  set_traffic(state, 2);
}

/// out = in0 op in1 op ..., out being in0 where `in_place`.
void fold(benchmark::State& state, Fold kernel, DType dtype, Kind kind, std::size_t inputs,
          bool in_place) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(inputs + 1, bytes);
  const std::vector<const void*> in(arrays.each.begin() + 1, arrays.each.end());
  void* out = in_place ? arrays.each[1] : arrays.each[0];
  const std::vector<double> scales(kind == Kind::premul_sum ? inputs : 0, 0.5);
  for (auto _ : state) {
    kernel(dtype, kind, out, in, scales, bytes / tutti::size_of(dtype));
    benchmark::ClobberMemory();
  }
  set_traffic(state, static_cast<std::int64_t>(inputs) + 1);
}

void add(const std::string& name, Fold kernel, DType dtype, Kind kind, std::size_t inputs,
         bool in_place) {
  auto* made =
      benchmark::RegisterBenchmark(name.c_str(), fold, kernel, dtype, kind, inputs, in_place);
  for (const std::int64_t size : sizes) made->Arg(size);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string target = tutti::internal::kernel_target();
  const Fold best = tutti::internal::fold;
  const Fold scalar = tutti::internal::scalar::fold;
  benchmark::AddCustomContext("target", target);

  auto* plain_copy = benchmark::RegisterBenchmark("memcpy", copy);
  for (const std::int64_t size : sizes) plain_copy->Arg(size);

  for (int i = 0; i < tutti::dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name = "sum/" + std::string(name_of(dtype));
    add(name + "/2/" + target, best, dtype, Kind::sum, 2, false);
    add(name + "/2/" + target + "/in_place", best, dtype, Kind::sum, 2, true);
    add(name + "/2/scalar", scalar, dtype, Kind::sum, 2, false);
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::size_t inputs :
         {std::size_t{3}, std::size_t{4}, std::size_t{8}, std::size_t{16}, std::size_t{32}})
      add("sum/" + std::string(name_of(dtype)) + "/" + std::to_string(inputs) + "/" + target, best,
          dtype, Kind::sum, inputs, false);
  for (const Kind kind : {Kind::min, Kind::avg, Kind::premul_sum})
    for (const DType dtype : {DType::f32, DType::f16})
      add(std::string(name_of(kind)) + "/" + std::string(name_of(dtype)) + "/2/" + target, best,
          dtype, kind, 2, false);

  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
