#include "c/values.hpp"

#include <chrono>

#include <fmt/format.h>

namespace tutti::c_abi {
namespace {

static_assert(TUTTI_U8 == int(DType::u8) && TUTTI_I8 == int(DType::i8) &&
              TUTTI_I16 == int(DType::i16) && TUTTI_U16 == int(DType::u16) &&
              TUTTI_I32 == int(DType::i32) && TUTTI_U32 == int(DType::u32) &&
              TUTTI_I64 == int(DType::i64) && TUTTI_U64 == int(DType::u64) &&
              TUTTI_BOOLEAN == int(DType::boolean) && TUTTI_F16 == int(DType::f16) &&
              TUTTI_BF16 == int(DType::bf16) && TUTTI_F32 == int(DType::f32) &&
              TUTTI_F64 == int(DType::f64) && TUTTI_F8E4M3 == int(DType::f8e4m3) &&
              TUTTI_F8E5M2 == int(DType::f8e5m2) && TUTTI_COMPLEX64 == int(DType::complex64) &&
              TUTTI_COMPLEX128 == int(DType::complex128) && dtype_count == 17);
using Kind = ReduceOp::Kind;
static_assert(TUTTI_SUM == int(Kind::sum) && TUTTI_AVG == int(Kind::avg) &&
              TUTTI_PROD == int(Kind::prod) && TUTTI_MIN == int(Kind::min) &&
              TUTTI_MAX == int(Kind::max) && TUTTI_BAND == int(Kind::band) &&
              TUTTI_BOR == int(Kind::bor) && TUTTI_BXOR == int(Kind::bxor) &&
              TUTTI_PREMUL_SUM == int(Kind::premul_sum) && TUTTI_CUSTOM == int(Kind::custom) &&
              reduce_op_count == 10);
static_assert(TUTTI_CPU == int(DeviceType::cpu) && TUTTI_CUDA == int(DeviceType::cuda) &&
              TUTTI_EXTENSION == int(DeviceType::extension) && TUTTI_MAX_DIMS == Shape::max_dims);

static_assert(TUTTI_OP_ALL_REDUCE == int(Operation::all_reduce) &&
              TUTTI_OP_BROADCAST == int(Operation::broadcast) &&
              TUTTI_OP_REDUCE == int(Operation::reduce) &&
              TUTTI_OP_ALL_GATHER == int(Operation::all_gather) &&
              TUTTI_OP_REDUCE_SCATTER == int(Operation::reduce_scatter) &&
              TUTTI_OP_ALL_TO_ALL == int(Operation::all_to_all) &&
              TUTTI_OP_GATHER == int(Operation::gather) &&
              TUTTI_OP_SCATTER == int(Operation::scatter) &&
              TUTTI_OP_SCAN == int(Operation::scan) &&
              TUTTI_OP_EXCLUSIVE_SCAN == int(Operation::exclusive_scan) &&
              TUTTI_OP_BARRIER == int(Operation::barrier) &&
              TUTTI_OP_SEND == int(Operation::send) && TUTTI_OP_RECV == int(Operation::recv) &&
              TUTTI_OP_RECV_ANY == int(Operation::recv_any) && TUTTI_ANY_PEER == any_peer);
static_assert(TUTTI_LOG_ERROR == int(LogLevel::error) &&
              TUTTI_LOG_WARNING == int(LogLevel::warning) &&
              TUTTI_LOG_INFO == int(LogLevel::info) && TUTTI_LOG_DEBUG == int(LogLevel::debug));

/// An allocator of function pointers.
class FunctionMemory final : public Memory, public std::enable_shared_from_this<FunctionMemory> {
 public:
  explicit FunctionMemory(const tutti_memory& functions) : f_(functions) {}
  Device device() const noexcept override { return c_abi::device(f_.device_type, f_.device_index); }
  void* allocate(std::size_t bytes, Stream stream) override {
    void* data = f_.allocate(f_.context, bytes, stream.handle);
    if (data == nullptr)
      fail(Errc::resource_exhausted,
           fmt::format("tutti_memory: allocate({}) returned null", bytes));
    return data;
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    f_.release(f_.context, data, bytes, stream.handle);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    if (f_.copy != nullptr)
      f_.copy(f_.context, to, from, bytes, stream.handle);
    else
      host_memory().copy(to, from, bytes, stream);
  }
  std::shared_ptr<const void> lifetime() const noexcept override { return shared_from_this(); }

 private:
  tutti_memory f_;
};

}  // namespace

Device device(std::int32_t type, std::int32_t index) {
  return {type == 0 ? DeviceType::cpu : static_cast<DeviceType>(type), index};
}

TensorView view(const tutti_array* array) {
  if (array == nullptr) return {};
  const auto a = read(array);
  if (a.ndim < 0 || a.ndim > TUTTI_MAX_DIMS)
    fail(Errc::invalid_argument,
         fmt::format("an array has {} dimensions; it must have 0 to {}", a.ndim, TUTTI_MAX_DIMS));
  return {a.data, enumerator<DType>(a.dtype),
          Shape(std::span(a.dims, static_cast<std::size_t>(a.ndim))),
          device(a.device_type, a.device_index)};
}

std::vector<TensorView> views(const tutti_array* list, std::size_t count) {
  (void)list_of(list, count, "a list of arrays");
  std::vector<TensorView> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(view(element(list, i)));
  return all;
}

std::vector<ConstTensorView> const_views(const tutti_array* list, std::size_t count) {
  const auto all = views(list, count);
  return {all.begin(), all.end()};
}

tutti_array describe(const ConstTensorView& from) {
  tutti_array to{};
  to.size = sizeof(to);
  to.data = const_cast<void*>(from.data);
  to.dtype = static_cast<std::int32_t>(from.dtype);
  to.ndim = static_cast<std::int32_t>(from.shape.ndim());
  to.device_type = static_cast<std::int32_t>(from.device.type);
  to.device_index = from.device.index;
  std::ranges::copy(from.shape.dims(), to.dims);
  return to;
}

std::shared_ptr<Memory> make_memory(const tutti_memory& functions) {
  if (functions.allocate == nullptr || functions.release == nullptr)
    fail(Errc::invalid_argument, "tutti_memory: allocate or release is null");
  return std::make_shared<FunctionMemory>(functions);
}

Call::Call(const tutti_call_options* from) : from_(read(from)) {
  if (from_.memory != nullptr) memory_ = make_memory(read(from_.memory));
  options_.stream = {from_.stream};
  options_.timeout = std::chrono::nanoseconds(from_.timeout_ns);
  if (from_.deadline_ns != 0)
    options_.deadline =
        Deadline::at(Deadline::Clock::time_point(std::chrono::nanoseconds(from_.deadline_ns)));
  options_.order_fixed = from_.order_fixed != 0;
  options_.reproducible = from_.reproducible != 0;
  options_.integer_avg = from_.integer_avg != 0;
  options_.name = text(from_.name);
  options_.memory = memory_.get();
}

ReduceOp Call::op(std::int32_t kind) const {
  ReduceOp op{.kind = enumerator<ReduceOp::Kind>(kind)};
  if (op.kind == ReduceOp::Kind::premul_sum) op.scale = from_.scale;
  if (op.kind == ReduceOp::Kind::custom) {
    // The same calling convention: a DType is passed as its std::uint8_t.
    op.function = reinterpret_cast<CustomReduce>(from_.reduce);
    op.context = from_.reduce_context;
    op.commutative = from_.commutative != 0;
  }
  return op;
}

Rows rows(const ProcessGroup& group, const std::int64_t* of_ranks) {
  if (of_ranks == nullptr) return {};
  return std::span(of_ranks, static_cast<std::size_t>(group.size()));
}

RowLayout layout(const ProcessGroup& group, const std::int64_t* of_ranks) {
  if (of_ranks == nullptr) return {};
  return RowLayout(std::span(of_ranks, static_cast<std::size_t>(group.size())));
}

void Content::add(Tensor&& tensor) {
  auto owner = std::make_shared<Tensor>(std::move(tensor));
  arrays.push_back({describe(owner->view()), owner});
}

}  // namespace tutti::c_abi

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

extern "C" {

tutti_status tutti_result_count(const tutti_result* result, size_t* arrays) {
  return guard([&] {
    deref(arrays, "an out-parameter") = deref(result, "the result").content->arrays.size();
  });
}

tutti_status tutti_result_array(const tutti_result* result, size_t index, tutti_array* array) {
  return guard([&] {
    const auto& all = deref(result, "the result").content->arrays;
    if (index >= all.size())
      tutti::fail(tutti::Errc::invalid_argument,
                  fmt::format("array {} of a result of {} arrays", index, all.size()));
    write(array, all[index].array);
  });
}

tutti_status tutti_result_rows(const tutti_result* result, const int64_t** rows, size_t* count) {
  return guard([&] {
    const auto& all = deref(result, "the result").content->rows;
    deref(rows, "an out-parameter") = all.empty() ? nullptr : all.data();
    deref(count, "an out-parameter") = all.size();
  });
}

tutti_status tutti_result_free(tutti_result* result) {
  delete result;
  return TUTTI_OK;
}

}  // extern "C"
