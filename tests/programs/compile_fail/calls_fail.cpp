#include <array>
#include <span>
#include <utility>
#include <vector>

#include <tutti/process_group.hpp>

// Calls that must not compile: dropped results, and arrays that a verb cannot or should not use.
void calls(tutti::ProcessGroup& group, tutti::Tensor tensor, std::vector<float> values) {
#ifdef PARTS_OF_THE_SPI  // error: not a member|no member|not been declared
  group.barrier(tutti::Call());
#else
  group.barrier(tutti::CallOptions());
#endif

  const std::vector<float> constant = values;

#ifdef DROPPED_WORK  // error: nodiscard
  group.all_reduce_async(values);
#else
  group.all_reduce_async(values).wait();
#endif

#ifdef DROPPED_WORK_OF_A_BARRIER  // error: nodiscard
  group.barrier_async();
#else
  group.barrier();
#endif

#ifdef DROPPED_THEN  // error: nodiscard
  group.all_reduce_async(values).then([] {});
#else
  group.all_reduce_async(values).then([] {}).wait();
#endif

#ifdef RVALUE_TENSOR_TO_ASYNC  // error: deleted function
  group.all_reduce_async(std::move(tensor)).wait();
#else
  group.all_reduce_async(tensor).wait();
#endif

#ifdef RVALUE_TENSOR_AS_INPUT_OF_ASYNC  // error: deleted function
  group.all_gather_async(std::move(tensor), values).wait();
#else
  group.all_gather_async(tensor, values).wait();
#endif

#ifdef RVALUE_VECTOR_TO_ASYNC  // error: no matching|cannot convert|no viable
  group.broadcast_async(std::vector<float>{1, 2}, 0).wait();
#else
  group.broadcast_async(values, 0).wait();
#endif

#ifdef RVALUE_VECTOR_AS_INPUT_OF_ASYNC  // error: no matching|cannot convert|no viable
  group.send_async(std::vector<float>{1, 2}, 0).wait();
#else
  group.send_async(std::span(values), 0).wait();
#endif

#ifdef CONST_VECTOR_AS_OUTPUT  // error: NeedsWritableElements|deleted
  group.all_reduce(constant);
#else
  group.all_reduce(constant, values);
#endif

#ifdef CONST_SPAN_AS_OUTPUT  // error: NeedsWritableElements|deleted
  group.recv(std::span<const float>(values), 0);
#else
  group.recv(std::span<float>(values), 0);
#endif

#ifdef CONST_TENSOR_AS_OUTPUT  // error: no matching|cannot convert|no viable
  group.broadcast(std::as_const(tensor), 0);
#else
  group.send(std::as_const(tensor), 0);
#endif

  std::vector<long double> wide(2);
  std::vector<int> ints(2);
#ifdef NO_DTYPE_FOR_LONG_DOUBLE  // error: no matching|cannot convert|no viable
  group.broadcast(wide, 0);
#else
  group.broadcast(ints, 0);
#endif

  std::vector<bool> bits(2);
  std::array<bool, 2> flags{};
#ifdef VECTOR_OF_BOOL_HAS_NO_ARRAY  // error: no matching|cannot convert|no viable
  group.broadcast(bits, 0);
#else
  group.broadcast(flags, 0);
#endif

#ifdef REDUCE_OP_IS_NO_NUMBER  // error: no matching|cannot convert|no viable
  group.all_reduce(values, 2);
#else
  group.all_reduce(values, tutti::ReduceOp::premul(2));
#endif
}
