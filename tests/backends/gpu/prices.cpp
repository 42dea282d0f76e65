#include "prices.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>

#include <tutti/tensor.hpp>

#include "cuda/fold_kernels.hpp"
#include "cuda/memory.hpp"

namespace tutti::gpu {
namespace {

using backend::cuda::check;
using backend::cuda::CudaApi;
using backend::nccl::check;
using Clock = std::chrono::steady_clock;

/// A pool that keeps freed memory up to `threshold` bytes when the stream is waited for.
class Pool {
 public:
  Pool(const CudaApi& cuda, const CudaFunctions& functions, int device, std::uint64_t threshold)
      : functions_(functions) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    check(cuda, cuda.mem_pool_create(&pool_, &properties), "cudaMemPoolCreate");
    check(cuda, cuda.mem_pool_set_attribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold),
          "cudaMemPoolSetAttribute");
  }
  ~Pool() { (void)functions_.mem_pool_destroy(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  cudaMemPool_t get() const noexcept { return pool_; }

 private:
  const CudaFunctions& functions_;
  cudaMemPool_t pool_ = nullptr;
};

/// A graph without a node.
class EmptyGraph {
 public:
  EmptyGraph(const CudaApi& cuda, cudaStream_t stream) : cuda_(cuda) {
    check(cuda, cuda.stream_begin_capture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    check(cuda, cuda.stream_end_capture(stream, &graph_), "cudaStreamEndCapture");
    check(cuda, cuda.graph_instantiate_with_flags(&made_, graph_, 0),
          "cudaGraphInstantiateWithFlags");
  }
  ~EmptyGraph() {
    (void)cuda_.graph_exec_destroy(made_);
    (void)cuda_.graph_destroy(graph_);
  }
  EmptyGraph(const EmptyGraph&) = delete;
  EmptyGraph& operator=(const EmptyGraph&) = delete;
  cudaGraphExec_t get() const noexcept { return made_; }

 private:
  const CudaApi& cuda_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t made_ = nullptr;
};

/// An element type with the bits of 1, 4 and 8.
struct Element {
  DType dtype;
  std::uint64_t one;
  std::uint64_t four;
  std::uint64_t eight;
};
constexpr Element elements[] = {
    {DType::i8, 1, 4, 8},
    {DType::bf16, 0x3f80, 0x4080, 0x4100},
    {DType::f32, 0x3f800000, 0x40800000, 0x41000000},
    {DType::f64, 0x3ff0000000000000, 0x4010000000000000, 0x4020000000000000}};

std::vector<std::byte> filled(std::size_t bytes, DType dtype, std::uint64_t bits) {
  std::vector<std::byte> all(bytes);
  const auto size = static_cast<std::size_t>(size_of(dtype));
  for (std::size_t at = 0; at + size <= bytes; at += size)
    std::memcpy(all.data() + at, &bits, size);  // Little-endian, as all hosts of CUDA are.
  return all;
}

/// Work on one stream of one rank, timed.
class Timed {
 public:
  explicit Timed(const Rank& here, const PriceOptions& options)
      : cuda(*here.apis.cuda),
        stream_(std::make_shared<backend::cuda::Gpu>(cuda, here.device)),
        here_(here),
        options_(options) {}

  cudaStream_t stream() const { return stream_.get(); }
  void synchronize() const {
    check(cuda, cuda.stream_synchronize(stream()), "cudaStreamSynchronize");
  }
  /// Of one of `calls` calls, on the host.
  double host_ns(int calls, const std::function<void()>& call) const {
    std::vector<double> rounds;
    for (int round = 0; round <= options_.rounds; ++round) {
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) call();
      const std::chrono::duration<double, std::nano> took = Clock::now() - start;
      synchronize();
      if (round != 0) rounds.push_back(took.count() / calls);  // The first one warms up.
    }
    return median(rounds);
  }
  /// Of one call, on the device.
  double device_us(const std::function<void()>& call) const {
    Mark from(cuda);
    Mark to(cuda);
    std::vector<double> rounds;
    for (int round = 0; round < options_.rounds; ++round) {
      from.record(stream());
      call();
      to.record(stream());
      rounds.push_back(here_.elapsed_us(from.get(), to.get()));
    }
    return median(rounds);
  }

  const CudaApi& cuda;

 private:
  backend::cuda::CudaStream stream_;
  const Rank& here_;
  const PriceOptions& options_;
};

}  // namespace

std::vector<Price> measure_prices(const Rank& here, const CudaFunctions& functions,
                                  const PriceOptions& options) {
  const Timed timed(here, options);
  const CudaApi& cuda = timed.cuda;
  const auto& nccl = *here.apis.nccl;
  const cudaStream_t stream = timed.stream();
  std::vector<Price> prices;
  const auto add = [&](std::string call, int calls, const std::function<void()>& function) {
    prices.push_back({std::move(call), timed.host_ns(calls, function)});
  };
  Mark event(cuda);
  add("cudaEventRecord", options.calls, [&] { event.record(stream); });
  add("cudaStreamWaitEvent", options.calls,
      [&] { check(cuda, cuda.stream_wait_event(stream, event.get(), 0), "cudaStreamWaitEvent"); });
  timed.synchronize();
  add("cudaEventQuery", options.calls,
      [&] { check(cuda, cuda.event_query(event.get()), "cudaEventQuery"); });
  cudaStreamCaptureStatus capturing{};
  add("cudaStreamIsCapturing", options.calls,
      [&] { check(cuda, cuda.stream_is_capturing(stream, &capturing), "cudaStreamIsCapturing"); });
  add("cudaStreamSynchronize of an idle stream", options.calls, [&] { timed.synchronize(); });

  constexpr std::size_t bytes = std::size_t{1} << 20;
  void* data = nullptr;
  add("cudaMallocAsync + cudaFreeAsync of 1 MiB", options.calls, [&] {
    check(cuda, cuda.malloc_async(&data, bytes, stream), "cudaMallocAsync");
    check(cuda, cuda.free_async(data, stream), "cudaFreeAsync");
  });
  for (const bool keeps : {false, true}) {
    const Pool pool(cuda, functions, here.device, keeps ? UINT64_MAX : 0);
    // Memory beyond the threshold is given back when the stream is waited for.
    add(fmt::format("the same from a pool, + cudaStreamSynchronize, release threshold {}",
                    keeps ? "max" : "0"),
        std::max(options.calls / 10, 1), [&] {
          check(cuda, cuda.malloc_from_pool_async(&data, bytes, pool.get(), stream),
                "cudaMallocFromPoolAsync");
          check(cuda, cuda.free_async(data, stream), "cudaFreeAsync");
          timed.synchronize();
        });
  }
  {
    const EmptyGraph graph(cuda, stream);
    add("cudaGraphLaunch of an empty graph", options.calls,
        [&] { check(cuda, cuda.graph_launch(graph.get(), stream), "cudaGraphLaunch"); });
    timed.synchronize();
  }
  add("ncclGroupStart + ncclGroupEnd, empty", options.calls, [&] {
    check(nccl, nccl.group_start(), "ncclGroupStart");
    check(nccl, nccl.group_end(), "ncclGroupEnd");
  });
  add("pthread_create + pthread_join", std::max(options.calls / 10, 1),
      [] { std::thread([] {}).join(); });
  return prices;
}

std::vector<Rate> measure_folds(const Rank& here, const PriceOptions& options) {
  const Timed timed(here, options);
  const Stream stream{timed.stream()};
  Memory& memory = backend::cuda::cuda_memory(timed.cuda, here.device);
  Tensor slots(memory, {static_cast<std::int64_t>(options.fold_bytes)}, DType::u8, stream);
  auto* data = static_cast<std::byte*>(slots.data());
  std::vector<Rate> rates;
  const auto rate = [](std::size_t bytes, double us) {
    return static_cast<double>(bytes) / us / 1e3;
  };
  const std::size_t half = options.fold_bytes / 2;
  const auto copy_us = timed.device_us([&] {
    check(timed.cuda,
          timed.cuda.memcpy_async(data + half, data, half, cudaMemcpyDefault, timed.stream()),
          "cudaMemcpyAsync");
  });
  rates.push_back({"a copy on the device", rate(2 * half, copy_us), 0});
  if (here.apis.driver == nullptr) return rates;

  const auto& kernels = backend::cuda::fold_kernels(here.apis.driver, here.apis.fold_image);
  for (const Element& element : elements)
    for (const int size : {4, 8}) {
      const std::size_t slot = options.fold_bytes / static_cast<std::size_t>(size);
      const auto ones = filled(slot, element.dtype, element.one);
      for (int i = 0; i < size; ++i)
        memory.copy(data + static_cast<std::size_t>(i) * slot, ones.data(), slot, stream);
      const auto fold = [&] {
        kernels.fold({.slots = data,
                      .slot = slot,
                      .bytes = slot,
                      .size = size,
                      .dtype = element.dtype,
                      .kind = ReduceOp::Kind::sum},
                     timed.stream());
      };
      fold();
      std::vector<std::byte> found(slot);
      memory.copy(found.data(), data, slot, stream);
      const auto want = filled(slot, element.dtype, size == 4 ? element.four : element.eight);
      Rate row{
          fmt::format("fold of {} slots of {} {}", size, size_text(slot), name_of(element.dtype))};
      for (std::size_t i = 0; i < slot; ++i)
        if (found[i] != want[i]) ++row.wrong;
      row.gb_per_s = rate(slot * static_cast<std::size_t>(size + 1), timed.device_us(fold));
      rates.push_back(row);
    }
  return rates;
}

std::string to_markdown(const std::vector<Price>& prices) {
  std::string table = "| call | ns |\n|---|---:|\n";
  for (const Price& price : prices) table += fmt::format("| {} | {:.0f} |\n", price.call, price.ns);
  return table;
}

std::string to_markdown(const std::vector<Rate>& rates) {
  std::string table = "| on the device | GB/s | |\n|---|---:|---|\n";
  for (const Rate& rate : rates)
    table += fmt::format("| {} | {:.0f} | {} |\n", rate.what, rate.gb_per_s,
                         rate.wrong == 0 ? "ok" : fmt::format("WRONG: {} bytes", rate.wrong));
  return table;
}

}  // namespace tutti::gpu
