#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/memory.hpp>

#include "call_streams.hpp"
#include "op_context.hpp"

namespace tutti::backend::nccl {

/// The calls of a prepared list as a CUDA graph on one rank. One launch of the list captures the
/// graph and launches it; each later one launches the graph alone.
///
/// Under Launcher's mutex, except for the destructor.
class ReplayGraph {
 public:
  /// `own`: the context with the group's own stream. `recording`: a stream that is used only for
  /// captures. Both must live until end().
  ReplayGraph(const OpContext& own, cudaStream_t recording);
  ~ReplayGraph() { end(true); }
  ReplayGraph(const ReplayGraph&) = delete;
  ReplayGraph& operator=(const ReplayGraph&) = delete;

  /// Begins the capture, which any thread may complete(). Operations with the returned context
  /// become part of the graph. @throws Error.
  OpContext begin();
  /// Ends the capture. @throws Error.
  void complete();
  bool is_complete() const noexcept { return is_complete_; }
  /// Queues the graph, behind its earlier launches too. @throws Error aborted after end().
  void launch(cudaStream_t stream);
  /// Destroys the graph. If work of the group may hang on the device (not `idle`), leaks the graph
  /// and its memory, because CUDA may wait for that work.
  void end(bool idle) noexcept;

 private:
  /// The scratch memory of the operations. It is allocated outside of the capture, on the group's
  /// own stream, and lives as long as the graph.
  class ScratchMemory final : public Memory {
   public:
    explicit ScratchMemory(const OpContext& own) noexcept
        : memory_(own.memory), stream_{own.stream} {}
    Device device() const noexcept override { return memory_.device(); }
    void* allocate(std::size_t bytes, Stream) override;
    void release(void*, std::size_t, Stream) noexcept override {}
    void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
      memory_.copy(to, from, bytes, stream);
    }
    /// Frees all blocks behind the work on the group's own stream.
    void release_all() noexcept;
    void leak() noexcept { blocks_.clear(); }

   private:
    Memory& memory_;
    Stream stream_;
    std::vector<std::pair<void*, std::size_t>> blocks_;
  };

  OpContext own_;
  cudaStream_t recording_;
  ScratchMemory scratch_;
  cudaGraphExec_t graph_ = nullptr;
  bool is_open_ = false;  // The capture.
  bool is_complete_ = false;
};

/// The graphs of a group's prepared lists. Under Launcher's mutex.
class Replays {
 public:
  /// Prepares a launch of the list whose place is `kept`. Null: the first one, an ordinary call, in
  /// which NCCL connects the ranks. Then the list's graph, which the second launch has to capture.
  std::shared_ptr<ReplayGraph> next(std::unique_ptr<Kept>& kept, const OpContext& own,
                                    CallStreams& streams);
  /// True while a list has a graph.
  bool has_graphs() noexcept;
  /// Ends all graphs, as ReplayGraph::end().
  void end(bool idle) noexcept;

 private:
  std::vector<std::weak_ptr<ReplayGraph>> all_;
};

}  // namespace tutti::backend::nccl
