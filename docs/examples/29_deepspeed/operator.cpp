// DeepSpeed's operator inference_all_reduce_ over a process group of tutti. DeepSpeed calls it for
// the sums of tensor-parallel inference on CPUs, where it finds it in torch's table of operators.

#include <cstdint>
#include <optional>
#include <string>

#include <torch/library.h>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/init.hpp>

namespace {

std::optional<tutti::ProcessGroup> group;
std::int64_t calls = 0;

void start(const std::string& backend) {
  tutti::InitOptions options;
  options.group.backend = backend;
  group = tutti::init(options);
}

// The number of sums.
std::int64_t finish() {
  group.reset();
  return calls;
}

at::Tensor& inference_all_reduce_(at::Tensor& tensor) {
  TORCH_CHECK(group, "inference_all_reduce_: call torch.ops.tutti_deepspeed.start first");
  const at::Tensor values = tensor.contiguous();
  ++calls;
  group->all_reduce(tutti::libtorch::mutable_view(values));
  return values.is_same(tensor) ? tensor : tensor.copy_(values);
}

}  // namespace

TORCH_LIBRARY(deepspeed, library) {
  library.def("inference_all_reduce_(Tensor(a!) self) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(deepspeed, CPU, library) {
  library.impl("inference_all_reduce_", &inference_all_reduce_);
}
TORCH_LIBRARY(tutti_deepspeed, library) {
  library.def("start(str backend) -> ()", &start);
  library.def("finish() -> int", &finish);
}
