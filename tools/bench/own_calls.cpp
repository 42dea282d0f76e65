#include "bench/own_calls.hpp"

#include "bench/staging.hpp"

namespace tutti::tool {
namespace {

/// Copies the values to an array of the group, makes a call with it and copies them back.
template <typename Call>
void with_array(ProcessGroup& group, std::span<std::int64_t> values, const Call& call) {
  Memory& memory = group.memory();
  if (on_host(memory)) return call(TensorView(values));
  Tensor array(memory, Shape{std::ssize(values)}, DType::i64);
  memory.copy(array.data(), values.data(), values.size_bytes(), {});
  call(TensorView(array));
  memory.copy(values.data(), array.data(), values.size_bytes(), {});
}

}  // namespace

std::int64_t agree(ProcessGroup& group, std::int64_t rank0_decision) {
  with_array(group, std::span(&rank0_decision, 1),
             [&](const TensorView& decision) { group.broadcast(decision, 0); });
  return rank0_decision;
}

std::vector<std::int64_t> reduce(ProcessGroup& group, std::span<const std::int64_t> own,
                                 ReduceOp op) {
  std::vector<std::int64_t> values(own.begin(), own.end());
  with_array(group, values, [&](const TensorView& all) { group.reduce(all, all, 0, op); });
  return values;
}

}  // namespace tutti::tool
