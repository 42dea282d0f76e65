// GB/s of memory traffic, with bytes read and bytes written; memcpy is the reference. A row's name:
// operation, dtype, number of inputs, instruction set, bytes per array.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/kernel_target.hpp"
#include "kernels/reduce.hpp"

namespace {

using tutti::DType;
using Kind = tutti::ReduceOp::Kind;
using Fold = void (*)(DType, Kind, void*, std::span<const void* const>, std::span<const double>,
                      std::size_t) noexcept;

// Sizes in the second-level cache, and in memory.
constexpr std::int64_t small = std::int64_t{64} << 10;
constexpr std::int64_t large = std::int64_t{16} << 20;

/// Arrays of zeros, because no kernel's speed depends on the values. They begin at different
/// offsets into a page; equal offsets would slow down any kernel.
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

struct Case {
  Kind kind = Kind::sum;
  DType dtype = DType::f32;
  std::size_t inputs = 2;
  bool in_place = false;

  std::string name() const {
    return std::string(name_of(kind)) + "/" + std::string(name_of(dtype)) + "/" +
           std::to_string(inputs) + (in_place ? "/in_place/" : "/");
  }
};

void fold(benchmark::State& state, Fold kernel, const Case& c) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(c.inputs + 1, bytes);
  const std::vector<const void*> in(arrays.each.begin() + 1, arrays.each.end());
  void* out = arrays.each[c.in_place ? 1 : 0];
  const std::vector<double> scales(c.kind == Kind::premul_sum ? c.inputs : 0, 0.5);
  for (auto _ : state) {
    kernel(c.dtype, c.kind, out, in, scales, bytes / tutti::size_of(c.dtype));
    benchmark::ClobberMemory();
  }
  set_traffic(state, static_cast<std::int64_t>(c.inputs) + 1);
}

void add_best(const Case& c) {
  const std::string name = c.name() + tutti::internal::kernel_target();
  auto* made = benchmark::RegisterBenchmark(name.c_str(), fold, tutti::internal::fold, c);
  made->Arg(small)->Arg(c.inputs <= 8 ? large : large / 8);
}

void add_scalar(const Case& c) {
  const std::string name = c.name() + "scalar";
  benchmark::RegisterBenchmark(name.c_str(), fold, tutti::internal::scalar::fold, c)
      ->Arg(small)
      ->Arg(large);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("memcpy", copy)->Arg(small)->Arg(large);
  for (int i = 0; i < tutti::dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    add_best({.dtype = dtype});
    add_best({.dtype = dtype, .in_place = true});
    add_scalar({.dtype = dtype});
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    for (std::size_t inputs = 3; inputs <= 48; inputs *= 2)
      add_best({.dtype = dtype, .inputs = inputs});
  for (const Kind kind : {Kind::min, Kind::avg, Kind::premul_sum})
    for (const DType dtype : {DType::f32, DType::f16}) add_best({.kind = kind, .dtype = dtype});
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
