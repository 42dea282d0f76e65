#pragma once

#include <cstddef>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// Broadcasts the model's buffers from rank 0 as one array.
class BufferBroadcast {
 public:
  BufferBroadcast(ProcessGroup& group, std::vector<Parameter> buffers,
                  const ReducerOptions& options);
  /// Collective. Overwrites the buffers of every rank with rank 0's values, in the order of
  /// `stream`.
  void run(Stream stream = {});
  const std::vector<Parameter>& list() const noexcept { return buffers_; }
  BufferBroadcast(const BufferBroadcast&) = delete;
  ~BufferBroadcast();

 private:
  void wait() noexcept;
  enum class Way { into_array, out_of_array };
  void copy(Way way, Stream stream);

  ProcessGroup& group_;
  std::vector<Parameter> buffers_;
  CallOptions call_;  // With the stream of the last run.
  Tensor array_;      // The buffers as bytes, one after the other, padded.
};

}  // namespace tutti::ddp
