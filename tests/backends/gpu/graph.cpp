#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <tutti/process_group.hpp>

#include "cuda/api.hpp"
#include "cuda/device.hpp"
#include "run_ranks.hpp"

// usage: graph [replay | abort | deadline] [--copies N]. An all_reduce captured into a CUDA graph.
//   replay    launches the graph three times with other numbers
//   abort     rank 0 aborts the group while the graph is alive: all ranks get the error in time
//   deadline  rank 0 makes a call without its peers while the graph is alive: the deadline ends it
// After abort and deadline a new group works. The last line is "ok", or says what is wrong: status
// 1. Status 3 where the backend refuses captured calls or there are too few ranks, 77 without a
// GPU. --copies: the ranks are threads that share a device, not processes.

namespace {

using namespace tutti;
using namespace std::chrono_literals;
using backend::cuda::check;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t count = 1000;
constexpr int replays = 3;
constexpr auto short_deadline = 2s;
/// The bound of an error's delay: less than the 10 s after which the backend gives up on NCCL's
/// abort.
constexpr auto in_time = 8s;

/// An all_reduce of a group, captured. Launches add up the ranks' latest inputs.
class CapturedSum {
 public:
  /// @throws Error unsupported where captured calls are refused.
  CapturedSum(ProcessGroup& group, int device)
      : group_(group),
        stream_(std::make_shared<backend::cuda::Gpu>(cuda_, device)),
        in_(group.memory(), {count}, DType::f32, stream()),
        out_(group.memory(), {count}, DType::f32, stream()) {
    call();  // Connections are made outside of the graph.
    check(cuda_, cuda_.stream_begin_capture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      call();
    } catch (const Error&) {
      (void)cuda_.stream_end_capture(stream_.get(), &graph_);
      (void)cuda_.get_last_error();
      throw;
    }
    check(cuda_, cuda_.stream_end_capture(stream_.get(), &graph_), "cudaStreamEndCapture");
    check(cuda_, cuda_.graph_instantiate_with_flags(&made_, graph_, 0),
          "cudaGraphInstantiateWithFlags");
  }
  ~CapturedSum() {
    (void)cuda_.graph_exec_destroy(made_);
    (void)cuda_.graph_destroy(graph_);
  }
  CapturedSum(const CapturedSum&) = delete;
  CapturedSum& operator=(const CapturedSum&) = delete;

  /// Launches the graph; the number of wrong elements.
  std::int64_t wrong_after_launch(int turn) {
    std::vector<float> values(count, static_cast<float>(group_.rank() + 10 * turn));
    group_.memory().copy(in_.data(), values.data(), in_.bytes(), stream());
    check(cuda_, cuda_.graph_launch(made_, stream_.get()), "cudaGraphLaunch");
    group_.memory().copy(values.data(), out_.data(), out_.bytes(), stream());
    float want = 0;
    for (int rank = 0; rank < group_.size(); ++rank) want += static_cast<float>(rank + 10 * turn);
    std::int64_t wrong = 0;
    for (const float value : values)
      if (!(value == want)) ++wrong;
    return wrong;
  }
  void call() { group_.all_reduce(in_, out_, ReduceOp::sum, {.stream = stream()}); }
  /// The same call outside of the graph, to its end. @throws Error.
  void call_and_wait(CallOptions options = {}) {
    options.stream = stream();
    group_.all_reduce_async(in_, out_, ReduceOp::sum, options).wait();
  }

 private:
  Stream stream() const { return stream_.handle(); }

  const backend::cuda::CudaApi& cuda_ = backend::cuda::cuda_api();
  ProcessGroup& group_;
  backend::cuda::CudaStream stream_;
  Tensor in_;
  Tensor out_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t made_ = nullptr;
};

std::string replay(CapturedSum& sum) {
  std::int64_t wrong = 0;
  for (int turn = 0; turn < replays; ++turn) wrong += sum.wrong_after_launch(turn);
  return wrong == 0 ? "" : fmt::format("{} wrong elements in {} replays", wrong, replays);
}

/// The fault of the error with which `how` ends the group on this rank; empty if there is none.
std::string fail(std::string_view how, ProcessGroup& group, CapturedSum& sum) {
  if (sum.wrong_after_launch(0) != 0) return "the graph's first launch is wrong";
  group.barrier();
  const bool begins = group.rank() == 0;
  const bool deadline = how == "deadline";
  const auto start = Clock::now();
  try {
    if (begins && !deadline) group.abort("a test of abort");
    // A peer of the late call stays away until the deadline has passed.
    if (!begins && deadline) std::this_thread::sleep_for(short_deadline + 1s);
    CallOptions options;
    if (begins && deadline) options.timeout = short_deadline;
    sum.call_and_wait(options);
  } catch (const Error& error) {
    const std::chrono::duration<double> took = Clock::now() - start;
    fmt::print("after {:.2f} s: {}\n", took.count(), error.what());
    if (took > in_time + (deadline ? short_deadline : 0s))
      return fmt::format("the error took {:.1f} s", took.count());
    if (begins && deadline && error.code() != Errc::timeout)
      return fmt::format("an error {} instead of timeout", name_of(error.code()));
    return "";
  }
  return "no error was thrown";
}

gpu::Outcome run(std::string_view how, const gpu::Rank& here) {
  if (how != "replay" && here.size < 2)
    return {3, fmt::format("one rank has no peers that {} could end", how)};
  const auto make = [&](std::string_view name) {
    return ProcessGroup::create({.backend = here.backend,
                                 .store = make_prefix_store(here.store, fmt::format("{}/", name)),
                                 .rank = here.rank,
                                 .size = here.size,
                                 .device = {DeviceType::cuda, here.device},
                                 .timeout = std::chrono::minutes(1)});
  };
  auto group = make("first");
  std::string wrong;
  try {
    CapturedSum sum(group, here.device);
    meet(here, "captured");  // No rank makes its graph while a peer's kernel waits for this rank.
    wrong = how == "replay" ? replay(sum) : fail(how, group, sum);
  } catch (const Error& error) {
    if (error.code() != Errc::unsupported) throw;
    return {3, fmt::format("not built: {}", error.message())};
  }
  if (how == "replay") {
    group.barrier();
  } else {  // The graph is gone; its group has failed.
    auto next = make("next");
    CapturedSum sum(next, here.device);
    meet(here, "captured again");
    if (wrong.empty() && sum.wrong_after_launch(1) != 0) wrong = "the next group is wrong";
    next.barrier();
  }
  return {wrong.empty() ? 0 : 1, wrong.empty() ? "ok" : wrong};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const int copies = gpu::take_copies(arguments);
  const std::string_view how = arguments.empty() ? "replay" : arguments[0];
  if (copies < 0 || arguments.size() > 1 ||
      (how != "replay" && how != "abort" && how != "deadline")) {
    fmt::print(stderr, "usage: {} [replay | abort | deadline] [--copies N]\n", argv[0]);
    return 64;
  }
  return gpu::run_ranks(copies, [&](const gpu::Rank& here) { return run(how, here); });
}
