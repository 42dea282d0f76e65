#include "overhead.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>
#include <thread>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/process_group.hpp>

#include "cuda/api.hpp"
#include "cuda/device.hpp"
#include "nccl/nccl_api.hpp"

namespace tutti::gpu {
namespace {

using backend::cuda::check;
using backend::nccl::check;
using Clock = std::chrono::steady_clock;

constexpr std::size_t piece_bytes = std::size_t{16} << 20;

constexpr std::size_t period = 61;

/// Small whole numbers: sums of them are exact in f32, whatever the order.
float value(int rank, std::size_t i) {
  return static_cast<float>(i % period) + static_cast<float>(rank);
}

/// piece[i] = value_at(i), where the values repeat: a GiB of them must not take longer than the
/// calls.
template <typename ValueAt>
void tile(std::span<float> piece, ValueAt&& value_at) {
  const std::size_t first = std::min(period, piece.size());
  for (std::size_t i = 0; i < first; ++i) piece[i] = value_at(i);
  for (std::size_t i = first; i < piece.size(); ++i) piece[i] = piece[i - period];
}

bool is_divided(std::string_view operation) {
  return operation == "all_gather" || operation == "reduce_scatter";
}

/// One operation and size on one rank, in elements.
struct Call {
  std::string_view operation;
  std::size_t count;  ///< S.
  std::size_t block;  ///< S / n.
};

/// A communicator and its calls in a program without this library.
class Bare {
 public:
  Bare(const Rank& self, cudaStream_t stream, bool blocking)
      : nccl_(*self.apis.nccl), stream_(stream) {
    const std::string_view key = blocking ? "blocking/id" : "bare/id";
    ncclUniqueId id;
    if (self.rank == 0) {
      check(nccl_, nccl_.get_unique_id(&id), "ncclGetUniqueId");
      self.store->set(key, std::as_bytes(std::span(&id, 1)));
    } else {
      const auto bytes = self.store->get(key, Deadline::after(std::chrono::minutes(1)));
      std::memcpy(&id, bytes.data(), sizeof id);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    settle(nccl_.comm_init_rank_config(&comm_, self.size, id, self.rank, &config));
  }
  ~Bare() {
    if (std::uncaught_exceptions() != 0) {  // The peers may have ended.
      (void)nccl_.comm_abort(comm_);
      return;
    }
    (void)nccl_.comm_finalize(comm_);
    ncclResult_t state = ncclInProgress;
    while (nccl_.comm_get_async_error(comm_, &state) == ncclSuccess && state == ncclInProgress)
      std::this_thread::yield();
    (void)nccl_.comm_destroy(comm_);
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  void operator()(const Call& call, const float* in, float* out) {
    if (call.operation == "all_reduce")
      settle(nccl_.all_reduce(in, out, call.count, ncclFloat32, ncclSum, comm_, stream_));
    else if (call.operation == "all_gather")
      settle(nccl_.all_gather(in, out, call.block, ncclFloat32, comm_, stream_));
    else if (call.operation == "reduce_scatter")
      settle(nccl_.reduce_scatter(in, out, call.block, ncclFloat32, ncclSum, comm_, stream_));
    else
      settle(nccl_.broadcast(out, out, call.count, ncclFloat32, 0, comm_, stream_));
  }

 private:
  /// A non-blocking communicator may have to be polled.
  void settle(ncclResult_t result) {
    while (result == ncclInProgress)
      check(nccl_, nccl_.comm_get_async_error(comm_, &result), "ncclCommGetAsyncError");
    check(nccl_, result, "a call of the bare loop");
  }

  const backend::nccl::NcclApi& nccl_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

class Ours {
 public:
  Ours(ProcessGroup& group, cudaStream_t stream) : group_(group), options_{.stream = {stream}} {}

  void operator()(const Call& call, const float* in, float* out) {
    const auto whole = static_cast<std::int64_t>(call.count);
    const auto block = static_cast<std::int64_t>(call.block);
    if (call.operation == "all_reduce")
      group_.all_reduce(input(in, whole), output(out, whole), ReduceOp::sum, options_);
    else if (call.operation == "all_gather")
      group_.all_gather(input(in, block), output(out, whole), {}, options_);
    else if (call.operation == "reduce_scatter")
      group_.reduce_scatter(input(in, whole), output(out, block), {}, ReduceOp::sum, options_);
    else
      group_.broadcast(output(out, whole), 0, options_);
  }

 private:
  ConstTensorView input(const float* data, std::int64_t n) const {
    return {data, DType::f32, Shape{n}, group_.memory().device()};
  }
  TensorView output(float* data, std::int64_t n) const {
    return {data, DType::f32, Shape{n}, group_.memory().device()};
  }

  ProcessGroup& group_;
  CallOptions options_;
};

class Comparison {
 public:
  Comparison(const Rank& self, const OverheadOptions& options, ProcessGroup& group,
             cudaStream_t stream)
      : self_(self),
        options_(options),
        group_(group),
        stream_(stream),
        ours_(group, stream),
        bare_(self, stream, false),
        blocking_(self, stream, true),
        from_(*self.apis.cuda),
        to_(*self.apis.cuda) {
    std::size_t most = 0;
    for (const std::size_t bytes : options.sizes)
      most = std::max(most, call_of("all_gather", bytes).count);
    const Shape shape{static_cast<std::int64_t>(most)};
    in_ = Tensor(group.memory(), shape, DType::f32, {stream});
    out_ = Tensor(group.memory(), shape, DType::f32, {stream});
    store(in(), most);
  }

  OverheadRow row(std::string_view operation, std::size_t bytes) {
    const Call call = call_of(operation, bytes);
    OverheadRow row{.operation = std::string(operation), .bytes = call.count * sizeof(float)};
    row.calls = static_cast<int>(
        std::clamp<std::size_t>((std::size_t{64} << 20) / row.bytes, 8,
                                static_cast<std::size_t>(std::max(options_.most_calls, 8))));
    row.calls = std::min(row.calls, options_.most_calls);
    row.wrong = wrong_after(ours_, call) + wrong_after(bare_, call) + wrong_after(blocking_, call);
    Times ours;
    Times bare;
    Times blocking;
    const auto next = [&](int which) {
      if (which == 0) ours.add(block(ours_, call, row.calls));
      if (which == 1) bare.add(block(bare_, call, row.calls));
      if (which == 2) blocking.add(block(blocking_, call, row.calls));
    };
    std::array turns{0, 1, 2};
    for (const int which : turns) next(which);  // To warm up.
    for (auto* times : {&ours, &bare, &blocking}) *times = {};
    for (int round = 0; round < options_.rounds; ++round) {
      for (const int which : turns) next(which);
      std::ranges::next_permutation(turns);  // Every order occurs.
    }
    row.ours = ours.medians();
    row.bare = bare.medians();
    row.blocking = blocking.medians();
    return row;
  }

 private:
  struct Times {
    std::vector<double> device{};
    std::vector<double> host{};
    void add(const CallTime& block) {
      device.push_back(block.device_us);
      host.push_back(block.host_us);
    }
    CallTime medians() const { return {median(device), median(host)}; }
  };

  const float* in() const { return static_cast<const float*>(in_.data()); }
  float* out() { return static_cast<float*>(out_.data()); }

  Call call_of(std::string_view operation, std::size_t bytes) const {
    const auto n = static_cast<std::size_t>(self_.size);
    const std::size_t unit = is_divided(operation) ? n : 1;
    const std::size_t least = (bytes + sizeof(float) - 1) / sizeof(float);
    const std::size_t count = std::max<std::size_t>((least + unit - 1) / unit, 1) * unit;
    return {operation, count, count / n};
  }

  template <typename How>
  CallTime block(How& how, const Call& call, int calls) {
    from_.record(stream_);
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) how(call, in(), out());
    const std::chrono::duration<double, std::micro> host = Clock::now() - start;
    to_.record(stream_);
    return {self_.elapsed_us(from_.get(), to_.get()) / calls, host.count() / calls};
  }

  /// data[i] = this rank's value of i.
  void store(const float* data, std::size_t count) {
    std::vector<float> piece(std::min(count, piece_bytes / sizeof(float)));
    for (std::size_t at = 0; at < count; at += piece.size()) {
      const std::size_t n = std::min(piece.size(), count - at);
      tile(std::span(piece).first(n), [&](std::size_t i) { return value(self_.rank, at + i); });
      group_.memory().copy(const_cast<float*>(data) + at, piece.data(), n * sizeof(float),
                           {stream_});
    }
  }

  float expected(const Call& call, std::size_t i) const {
    const auto me = static_cast<std::size_t>(self_.rank);
    if (call.operation == "broadcast") return value(0, i);
    if (call.operation == "all_gather")
      return value(static_cast<int>(i / call.block), i % call.block);
    const std::size_t at = call.operation == "reduce_scatter" ? me * call.block + i : i;
    float sum = 0;
    for (int rank = 0; rank < self_.size; ++rank) sum += value(rank, at);
    return sum;
  }

  /// Makes one call into an array of NaN. Returns the number of wrong elements.
  template <typename How>
  std::size_t wrong_after(How& how, const Call& call) {
    const auto& cuda = *self_.apis.cuda;
    check(cuda, cuda.memset_async(out(), 0xff, call.count * sizeof(float), stream_),
          "cudaMemsetAsync");
    if (call.operation == "broadcast" && self_.rank == 0) store(out(), call.count);
    how(call, in(), out());
    const std::size_t count = call.operation == "reduce_scatter" ? call.block : call.count;
    // Of one rank's block at a time: within it the values repeat.
    const std::size_t block = call.operation == "all_gather" ? call.block : count;
    std::vector<float> piece(std::min(block, piece_bytes / sizeof(float)));
    std::vector<float> want(piece.size());
    std::size_t wrong = 0;
    for (std::size_t at = 0, n = 0; at < count; at += n) {
      n = std::min(piece.size(), block - at % block);
      group_.memory().copy(piece.data(), out() + at, n * sizeof(float), {stream_});
      tile(std::span(want).first(n), [&](std::size_t i) { return expected(call, at + i); });
      if (std::memcmp(piece.data(), want.data(), n * sizeof(float)) == 0) continue;
      for (std::size_t i = 0; i < n; ++i)
        if (!(piece[i] == want[i])) ++wrong;
    }
    return wrong;
  }

  const Rank& self_;
  const OverheadOptions& options_;
  ProcessGroup& group_;
  cudaStream_t stream_;
  Ours ours_;
  Bare bare_;
  Bare blocking_;
  Mark from_;
  Mark to_;
  Tensor in_{};
  Tensor out_{};
};

std::string rating(const OverheadRow& row) {
  if (row.wrong != 0) return fmt::format("WRONG: {} elements", row.wrong);
  if (passes(row)) return "ok";
  // The cost of a thread of NCCL per call, and the cost of this library.
  return within_limits(row.ours.device_us, row.bare.device_us) ? "SLOW beside blocking" : "SLOW";
}

}  // namespace

std::vector<std::size_t> overhead_sizes(std::size_t free, int ranks, bool full) {
  const std::size_t arrays = 2 * static_cast<std::size_t>(ranks);  // An input and an output each.
  const std::size_t most = std::clamp<std::size_t>(std::bit_floor(free / 2 / arrays), 8, 1 << 30);
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 8; bytes <= most; bytes *= full ? 2 : 8) sizes.push_back(bytes);
  if (sizes.back() != most) sizes.push_back(most);
  return sizes;
}

bool within_limits(double ours_us, double bare_us) noexcept {
  const double difference = ours_us - bare_us;
  return difference <= 1 || difference <= 0.02 * bare_us;
}

bool passes(const OverheadRow& row) noexcept {
  return row.wrong == 0 && within_limits(row.ours.device_us, row.bare.device_us) &&
         within_limits(row.ours.device_us, row.blocking.device_us);
}

std::vector<OverheadRow> measure_overhead(const Rank& self, const OverheadOptions& options,
                                          const std::function<void(const OverheadRow& row)>& done) {
  const backend::cuda::DeviceScope scope(*self.apis.cuda, self.device);
  auto group = make_group(self, "overhead");
  const backend::cuda::CudaStream stream(
      std::make_shared<backend::cuda::Gpu>(*self.apis.cuda, self.device));
  Comparison comparison(self, options, group, stream.get());
  std::vector<OverheadRow> rows;
  for (const std::string& operation : options.operations)
    for (const std::size_t bytes : options.sizes) {
      rows.push_back(comparison.row(operation, bytes));
      if (done) done(rows.back());
    }
  group.barrier();  // No rank destroys its communicators while another one uses them.
  return rows;
}

std::string markdown_head() {
  return "| operation | size | ours µs | bare, not blocking µs | difference | ratio "
         "| bare, blocking µs | difference | ratio | host: ours | not blocking | blocking | |\n"
         "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";
}

std::string to_markdown(const OverheadRow& row) {
  const auto beside = [&](const CallTime& bare) {
    return fmt::format("{:.2f} | {:+.2f} | {:.3f}", bare.device_us,
                       row.ours.device_us - bare.device_us, row.ours.device_us / bare.device_us);
  };
  return fmt::format("| {} | {} | {:.2f} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {} |\n",
                     row.operation, size_text(row.bytes), row.ours.device_us, beside(row.bare),
                     beside(row.blocking), row.ours.host_us, row.bare.host_us, row.blocking.host_us,
                     rating(row));
}

}  // namespace tutti::gpu
