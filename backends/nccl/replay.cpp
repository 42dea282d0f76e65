#include "replay.hpp"

#include <algorithm>

#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

/// The graph of a prepared list, kept from one launch for the next.
class Replay final : public Kept {
 public:
  std::shared_ptr<ReplayGraph> graph;  ///< Null before the second launch.
};

}  // namespace

ReplayGraph::ReplayGraph(const OpContext& own, cudaStream_t recording)
    : own_(own), recording_(recording), scratch_(own) {}

void* ReplayGraph::ScratchMemory::allocate(std::size_t bytes, Stream) {
  blocks_.reserve(blocks_.size() + 1);
  void* const data = memory_.allocate(bytes, stream_);
  blocks_.emplace_back(data, bytes);
  return data;
}

void ReplayGraph::ScratchMemory::release_all() noexcept {
  for (const auto& [data, bytes] : blocks_) memory_.release(data, bytes, stream_);
  blocks_.clear();
}

OpContext ReplayGraph::begin() {
  const auto& cuda = own_.gpu.cuda();
  const DeviceScope scope(cuda, own_.gpu.index());
  // This mode disturbs no other thread, and lets another thread end the capture.
  check(cuda, cuda.stream_begin_capture(recording_, cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
  is_open_ = true;
  return {own_.gpu, recording_, scratch_, own_.rank, own_.size, own_.token, own_.kernels};
}

void ReplayGraph::complete() {
  const auto& cuda = own_.gpu.cuda();
  const DeviceScope scope(cuda, own_.gpu.index());
  const cuda::RelaxedCapture relaxed(cuda);
  cudaGraph_t captured = nullptr;
  is_open_ = false;
  check(cuda, cuda.stream_end_capture(recording_, &captured), "cudaStreamEndCapture");
  const auto code = cuda.graph_instantiate_with_flags(&graph_, captured, 0);
  (void)cuda.graph_destroy(captured);
  check(cuda, code, "cudaGraphInstantiateWithFlags");
  is_complete_ = true;
}

void ReplayGraph::launch(cudaStream_t stream) {
  if (graph_ == nullptr) tutti::fail(Errc::aborted, "the communicator has ended");
  const auto& cuda = own_.gpu.cuda();
  check(cuda, cuda.graph_launch(graph_, stream), "cudaGraphLaunch");
}

void ReplayGraph::end(bool idle) noexcept {
  const auto graph = std::exchange(graph_, nullptr);
  if (!idle) return scratch_.leak();
  if (graph == nullptr && !is_open_) return scratch_.release_all();
  const auto& cuda = own_.gpu.cuda();
  const DeviceScope scope(cuda, own_.gpu.index(), std::nothrow);
  const cuda::RelaxedCapture relaxed(cuda);
  if (graph != nullptr) (void)cuda.graph_exec_destroy(graph);
  if (std::exchange(is_open_, false)) {
    cudaGraph_t captured = nullptr;
    if (cuda.stream_end_capture(recording_, &captured) != cudaSuccess) (void)cuda.get_last_error();
    if (captured != nullptr) (void)cuda.graph_destroy(captured);
  }
  scratch_.release_all();
}

std::shared_ptr<ReplayGraph> Replays::next(std::unique_ptr<Kept>& kept, const OpContext& own,
                                           CallStreams& streams) {
  if (kept == nullptr) {
    kept = std::make_unique<Replay>();
    return nullptr;
  }
  auto& graph = static_cast<Replay&>(*kept).graph;
  if (graph == nullptr) {
    const DeviceScope scope(own.gpu.cuda(), own.gpu.index());
    const cuda::RelaxedCapture relaxed(own.gpu.cuda());
    auto made = std::make_shared<ReplayGraph>(own, streams.for_capture(own.stream));
    (void)has_graphs();
    all_.push_back(made);
    graph = std::move(made);
  }
  return graph;
}

bool Replays::has_graphs() noexcept {
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  return !all_.empty();
}

void Replays::end(bool idle) noexcept {
  for (const auto& one : std::exchange(all_, {}))
    if (const auto graph = one.lock()) graph->end(idle);
}

}  // namespace tutti::backend::nccl
