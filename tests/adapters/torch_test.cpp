#include <tutti/adapters/torch/tensor.hpp>

#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tutti/gather.hpp>

#include "support/dtypes.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti {
namespace {

using test::expect_error;

void expect_refused(const at::Tensor& x, const std::vector<std::string>& texts) {
  expect_error(Errc::invalid_argument, texts, [&] { libtorch::view(x); });
  expect_error(Errc::invalid_argument, texts, [&] { libtorch::mutable_view(x); });
}

// A view of a temporary would outlive its memory.
template <typename T>
concept Viewable = requires(T&& x) {
  libtorch::view(std::forward<T>(x));
};
template <typename T>
concept MutablyViewable = requires(T&& x) {
  libtorch::mutable_view(std::forward<T>(x));
};
static_assert(Viewable<const at::Tensor&> && !Viewable<at::Tensor>);
static_assert(MutablyViewable<const at::Tensor&> && !MutablyViewable<at::Tensor>);
static_assert(std::is_convertible_v<const libtorch::Contiguous&, ConstTensorView>);
static_assert(!std::is_convertible_v<libtorch::Contiguous, ConstTensorView>);

// Counts allocated blocks of torch's allocator. Without `override`: const and pure functions
// changed between versions of torch.
struct CountedAllocator final : c10::Allocator {
  static inline std::atomic<int> out = 0;
  c10::DataPtr allocate(std::size_t bytes) { return std::as_const(*this).allocate(bytes); }
  c10::DataPtr allocate(std::size_t bytes) const {
    ++out;
    void* const data = c10::GetAllocator(c10::kCPU)->raw_allocate(bytes);
    return {data, data, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::memcpy(to, from, bytes);
  }
  static void give_back(void* data) {
    --out;
    c10::GetAllocator(c10::kCPU)->raw_deallocate(data);
  }
};

TEST(TorchTensor, AViewIsTheSameMemory) {
  const at::Tensor x = at::zeros({2, 3}, at::kDouble);
  const ConstTensorView read = libtorch::view(x);
  const TensorView write = libtorch::mutable_view(x);
  EXPECT_EQ(read.data, x.data_ptr());
  EXPECT_EQ(write.data, x.data_ptr());
  EXPECT_EQ(read.dtype, DType::f64);
  EXPECT_EQ(write.shape, (Shape{2, 3}));
  EXPECT_EQ(read.device, Device{});
  const at::Tensor scalar = x[1][2];
  EXPECT_EQ(libtorch::view(scalar).shape, Shape());
}

TEST(TorchTensor, AViewIntoALargerTensorBeginsWhereItDoes) {
  const at::Tensor x = at::arange(12, at::kFloat).view({4, 3});
  const at::Tensor rows = x.narrow(0, 1, 2);
  EXPECT_EQ(*static_cast<const float*>(libtorch::view(rows).data), 3);
}

TEST(TorchTensor, EveryDTypeGoesThereAndBack) {
  for (const DType dtype : test::all_dtypes) {
    // torch 2.3 added these types, 2.1 the 8-bit floats.
    const bool late = dtype == DType::u16 || dtype == DType::u32 || dtype == DType::u64 ||
                      dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
    if (late && !libtorch::detail::scalar_type<c10::ScalarType>(dtype)) {
      expect_error(Errc::unsupported,
                   {"this version of LibTorch has no", std::string(name_of(dtype))},
                   [&] { libtorch::to_torch(dtype); });
      continue;
    }
    const at::Tensor x = at::empty({2}, libtorch::to_torch(dtype));
    EXPECT_EQ(libtorch::view(x).dtype, dtype);
    EXPECT_EQ(x.element_size(), static_cast<std::int64_t>(size_of(dtype))) << name_of(dtype);
  }
}

TEST(TorchTensor, OtherDTypesAreRefusedByName) {
  expect_refused(at::empty({2}, at::kComplexHalf), {"ComplexHalf has no dtype"});
}

TEST(TorchTensor, DevicesAreMapped) {
  const Device second{DeviceType::cuda, 1};
  EXPECT_EQ(libtorch::to_torch(second), at::Device(at::kCUDA, 1));
  EXPECT_EQ(libtorch::from_torch(at::Device(at::kCUDA, 1)), second);
  EXPECT_EQ(libtorch::from_torch(at::Device(at::kCUDA)), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(libtorch::to_torch(Device{}), at::Device(at::kCPU));
  EXPECT_EQ(libtorch::from_torch(at::Device(at::kPrivateUse1, 2)),
            (Device{DeviceType::extension, 2}));
  expect_error(Errc::invalid_argument, {"device meta"},
               [] { libtorch::from_torch(at::Device(at::kMeta)); });
}

TEST(TorchTensor, WhatIsNotContiguousIsRefusedByName) {
  const at::Tensor x = at::zeros({2, 3});
  expect_refused(x.t(), {"sizes [3, 2]", "strides [1, 3]", "not contiguous"});
  expect_refused(x.select(1, 0), {"sizes [2]", "strides [3]"});
  expect_refused(at::zeros({1}).expand({4}), {"strides [0]"});
}

TEST(TorchTensor, WhatHasNoPlainMemoryIsRefusedByName) {
  expect_refused(at::Tensor(), {"not defined"});
  expect_refused(at::zeros({2, 3}).to_sparse(), {"sparse"});
  expect_refused(at::zeros({2}).expand({1, 2}).view({1, 1, 1, 1, 1, 1, 1, 1, 2}), {"9"});
  expect_refused(at::zeros({2})._neg_view(), {"resolve_neg()"});
}

TEST(TorchTensor, ContiguousCopiesOnlyWhatIsNot) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  const libtorch::Contiguous same(x);
  EXPECT_EQ(ConstTensorView(same).data, x.data_ptr());
  const libtorch::Contiguous turned(x.t());
  const ConstTensorView view = turned;
  EXPECT_EQ(view.shape, (Shape{3, 2}));
  const auto* const values = static_cast<const float*>(view.data);
  EXPECT_EQ(std::vector(values, values + 6), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const libtorch::Contiguous negative(x._neg_view());
  EXPECT_EQ(static_cast<const float*>(ConstTensorView(negative).data)[5], -5);
}

TEST(TorchTensor, AWriteBehindAutogradIsRefused) {
  at::Tensor x = at::zeros({2});
  x.set_requires_grad(true);
  EXPECT_NO_THROW(libtorch::view(x));
  expect_error(Errc::invalid_argument, {"requires grad"}, [&] { libtorch::mutable_view(x); });
  const c10::AutoGradMode off(false);
  EXPECT_EQ(libtorch::mutable_view(x).data, x.data_ptr());
}

TEST(TorchTensor, AMutableViewCountsAsAnInPlaceOperation) {
  const at::Tensor x = at::zeros({2});
  const auto before = x._version();
  libtorch::view(x);
  EXPECT_EQ(x._version(), before);
  libtorch::mutable_view(x);
  EXPECT_EQ(x._version(), before + 1);
}

TEST(TorchTensor, ATensorHoldsTheArrayItWasMadeOf) {
  CountedAllocator allocator;
  libtorch::AllocatorMemory memory(allocator);
  at::Tensor row;
  {
    Tensor array(memory, {2, 3}, DType::i64);
    void* const data = array.data();
    const at::Tensor x = libtorch::to_torch(std::move(array));
    EXPECT_EQ(x.data_ptr(), data);
    EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(x.scalar_type(), at::kLong);
    row = x[1];
  }
  EXPECT_EQ(CountedAllocator::out, 1);  // A view of it suffices.
  row.reset();
  EXPECT_EQ(CountedAllocator::out, 0);
}

TEST(TorchTensor, EmptyArraysAreTensors) {
  const at::Tensor x = libtorch::to_torch(Tensor(libtorch::memory(), {0, 3}, DType::f32));
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(libtorch::view(x).shape, (Shape{0, 3}));
}

TEST(TorchTensor, MemoryKeepsThePromisesOfMemory) {
  Memory& memory = libtorch::memory();
  EXPECT_EQ(memory.device(), Device{});
  for (const std::size_t bytes : {0U, 1U, 100U}) {
    void* const data = memory.allocate(bytes, {});
    EXPECT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
    memory.release(data, bytes, {});
  }
  expect_error(Errc::resource_exhausted, {}, [&] { memory.allocate(std::size_t{1} << 60, {}); });
}

struct TorchGather : testing::TestWithParam<test::World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchGather, testing::ValuesIn(test::worlds({1, 3})),
                         test::CaseName());

TEST_P(TorchGather, ResultsAreInTorchMemoryWhenAskedFor) {
  CountedAllocator allocator;
  libtorch::AllocatorMemory memory(allocator);
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const at::Tensor x = at::zeros({group.rank(), 2}).add(group.rank());
    GatheredRows rows = all_gather_rows(group, libtorch::view(x), {}, {.memory = &memory});
    const at::Tensor all = libtorch::to_torch(std::move(rows.data));
    EXPECT_GE(CountedAllocator::out, 1);
    std::int64_t at = 0;
    for (int rank = 0; rank < group.size(); ++rank)
      for (int row = 0; row < rank; ++row, ++at)
        EXPECT_EQ(all[at][1].item<float>(), static_cast<float>(rank));
    EXPECT_EQ(all.size(0), at);
  });
  EXPECT_EQ(CountedAllocator::out, 0);
}

}  // namespace
}  // namespace tutti
