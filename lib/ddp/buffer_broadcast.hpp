#pragma once

#include <cstddef>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// The buffers of the model, which rank 0 sends to all ranks as one array.
class BufferBroadcast {
 public:
  BufferBroadcast(ProcessGroup& group, std::vector<Parameter> buffers,
                  const ReducerOptions& options);
  /// Collective. Writes rank 0's buffers to those of all ranks.
  void run();

 private:
  enum class Way { into_array, out_of_array };
  void copy(Way way);

  ProcessGroup& group_;
  std::vector<Parameter> buffers_;
  CallOptions call_;
  Tensor array_;  // Of bytes.
};

}  // namespace tutti::ddp
