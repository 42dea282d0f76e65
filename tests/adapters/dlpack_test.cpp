#include <tutti/adapters/dlpack.hpp>

#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/dtypes.hpp"
#include "support/errors.hpp"
#include "support/memories.hpp"

// Built once per version of DLPack's header; version 1.0 added versioned arrays.

namespace tutti {
namespace {

using test::expect_error;
using test::RecordingMemory;

static_assert(!std::is_copy_constructible_v<dlpack::Borrowed>);  // It points to its own shape.

// An array as another framework would pass it. Strides are left out unless they are set.
struct Foreign {
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides{};
  DLTensor tensor{};

  explicit Foreign(void* data) {
    tensor.data = data;
    tensor.device = {kDLCPU, 0};
    tensor.dtype = {kDLFloat, 32, 1};
    point();
  }
  void point() {
    tensor.ndim = static_cast<int>(shape.size());
    tensor.shape = shape.data();
    tensor.strides = strides.empty() ? nullptr : strides.data();
  }
  void reshape(std::vector<std::int64_t> dims, std::vector<std::int64_t> steps = {}) {
    shape = std::move(dims);
    strides = std::move(steps);
    point();
  }
};

struct DLPackTest : testing::Test {
  std::vector<float> values = std::vector<float>(24);
  Foreign foreign{values.data()};

  void expect_refused(const std::vector<std::string>& texts) {
    expect_error(Errc::invalid_argument, texts, [&] { dlpack::view(foreign.tensor); });
    expect_error(Errc::invalid_argument, texts,
                 [&] { dlpack::view(std::as_const(foreign.tensor)); });
  }
};

TEST_F(DLPackTest, AViewIsTheSameMemory) {
  const TensorView view = dlpack::view(foreign.tensor);
  static_assert(std::is_same_v<decltype(dlpack::view(std::as_const(foreign.tensor))),  //
                               ConstTensorView>);
  EXPECT_EQ(view.data, values.data());
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.shape, (Shape{2, 3}));
  EXPECT_EQ(view.device, Device{});
}

TEST_F(DLPackTest, TheByteOffsetIsAdded) {
  foreign.tensor.byte_offset = 8;
  EXPECT_EQ(dlpack::view(foreign.tensor).data, values.data() + 2);
  foreign.tensor.byte_offset = 2;
  expect_refused({"f32 [2, 3] is misaligned"});
}

TEST_F(DLPackTest, NoDimensionsAreOneElement) {
  foreign.reshape({});
  foreign.tensor.shape = nullptr;
  EXPECT_EQ(dlpack::view(foreign.tensor).shape, Shape());
}

TEST_F(DLPackTest, StridesOfAContiguousArrayAreTaken) {
  foreign.reshape({2, 3, 4}, {12, 4, 1});
  EXPECT_EQ(dlpack::view(foreign.tensor).shape, (Shape{2, 3, 4}));
}

TEST_F(DLPackTest, StridesOfSizeOneDimensionsAreNotLookedAt) {
  foreign.reshape({1, 3, 1, 4}, {-7, 4, 99, 1});
  EXPECT_EQ(dlpack::view(foreign.tensor).shape, (Shape{1, 3, 1, 4}));
}

TEST_F(DLPackTest, OtherStridesAreRefusedByName) {
  foreign.reshape({2, 3}, {1, 2});  // A transpose.
  expect_refused({"dimension 1 of [2, 3] has stride 2", "it is 1", "make it contiguous"});
  foreign.reshape({2, 3}, {6, 1});  // Every second row.
  expect_refused({"dimension 0 of [2, 3] has stride 6", "it is 3"});
  foreign.reshape({2, 3}, {0, 1});  // One row, at two indices.
  expect_refused({"dimension 0 of [2, 3] has stride 0"});
}

TEST_F(DLPackTest, EmptyArraysNeedNoDataAndNoStrides) {
  foreign.tensor.data = nullptr;
  expect_refused({"f32 [2, 3] has no data"});
  foreign.reshape({2, 0, 3}, {5, 5, 5});
  EXPECT_EQ(dlpack::view(foreign.tensor).shape, (Shape{2, 0, 3}));
}

TEST_F(DLPackTest, TheNinthDimensionIsRefused) {
  foreign.reshape({1, 1, 1, 1, 1, 1, 1, 3});
  EXPECT_EQ(dlpack::view(foreign.tensor).shape.ndim(), 8U);
  foreign.reshape({1, 1, 1, 1, 1, 1, 1, 1, 3});
  expect_refused({"9 dimensions", "0 to 8"});
  foreign.tensor.ndim = -1;
  expect_refused({"-1 dimensions"});
  foreign.reshape({2, -3});
  expect_refused({"-3"});
  foreign.tensor.shape = nullptr;
  expect_refused({"2 dimensions and no shape"});
}

TEST_F(DLPackTest, EveryDTypeGoesThereAndBack) {
  for (const DType dtype : test::all_dtypes) {
    const DLDataType type = dlpack::to_dlpack(dtype);
    EXPECT_EQ(type.bits, 8 * size_of(dtype)) << name_of(dtype);
    EXPECT_EQ(type.lanes, 1) << name_of(dtype);
    EXPECT_EQ(dlpack::from_dlpack(type), dtype) << name_of(dtype);
  }
}

TEST_F(DLPackTest, CodesAreThoseOfTheStandard) {
  const auto code = [](DType dtype) { return static_cast<int>(dlpack::to_dlpack(dtype).code); };
  EXPECT_EQ(code(DType::i8), kDLInt);
  EXPECT_EQ(code(DType::i64), kDLInt);
  EXPECT_EQ(code(DType::u8), kDLUInt);
  EXPECT_EQ(code(DType::i16), kDLInt);
  EXPECT_EQ(code(DType::u16), kDLUInt);
  EXPECT_EQ(code(DType::u32), kDLUInt);
  EXPECT_EQ(code(DType::complex64), kDLComplex);
  EXPECT_EQ(code(DType::complex128), kDLComplex);
  EXPECT_EQ(code(DType::f16), kDLFloat);
  EXPECT_EQ(code(DType::f64), kDLFloat);
  EXPECT_EQ(code(DType::bf16), kDLBfloat);
#ifdef DLPACK_MAJOR_VERSION
  EXPECT_EQ(code(DType::boolean), kDLBool);
  EXPECT_EQ(code(DType::f8e4m3), kDLFloat8_e4m3fn);
  EXPECT_EQ(code(DType::f8e5m2), kDLFloat8_e5m2);
#endif
}

TEST_F(DLPackTest, OtherElementsAreRefusedByName) {
  foreign.tensor.dtype = {kDLFloat, 32, 4};
  expect_refused({"4 lanes"});
  foreign.tensor.dtype = {kDLComplex, 32, 1};
  expect_refused({"type code 5 of 32 bits"});
  foreign.tensor.dtype = {kDLInt, 4, 1};
  expect_refused({"type code 0 of 4 bits"});
}

TEST_F(DLPackTest, DevicesAreMapped) {
  foreign.tensor.device = {kDLCUDA, 3};
  EXPECT_EQ(dlpack::view(foreign.tensor).device, (Device{DeviceType::cuda, 3}));
  foreign.tensor.device = {kDLExtDev, 1};
  EXPECT_EQ(dlpack::view(foreign.tensor).device, (Device{DeviceType::extension, 1}));
  foreign.tensor.device = {kDLCUDAHost, 2};
  EXPECT_EQ(dlpack::view(foreign.tensor).device, Device{});
  foreign.tensor.device = {kDLMetal, 0};
  expect_refused({"device type 8"});
  for (const Device device : {Device{}, Device{DeviceType::cuda, 5}})
    EXPECT_EQ(dlpack::from_dlpack(dlpack::to_dlpack(device)), device);
}

TEST_F(DLPackTest, ABorrowedArrayComesBackAsTheSameView) {
  std::iota(values.begin(), values.end(), 0.F);
  dlpack::Borrowed borrowed(view(values, {2, 3, 4}));
  const TensorView back = dlpack::view(borrowed.tensor());
  EXPECT_EQ(back.data, values.data());
  EXPECT_EQ(back.shape, (Shape{2, 3, 4}));
  // DLPack 1.2 requires strides.
  EXPECT_EQ(std::vector(borrowed.tensor().strides, borrowed.tensor().strides + 3),
            (std::vector<std::int64_t>{12, 4, 1}));
}

TEST_F(DLPackTest, ABorrowedEmptyArrayHasNoData) {
  dlpack::Borrowed borrowed(ConstTensorView(values.data(), DType::f32, {0, 4}));
  EXPECT_EQ(borrowed.tensor().data, nullptr);
  EXPECT_EQ(borrowed.tensor().ndim, 2);
}

template <typename M>
struct DLPackOwned : testing::Test {};
#ifdef DLPACK_MAJOR_VERSION
using Kinds = testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
#else
using Kinds = testing::Types<DLManagedTensor>;
#endif
TYPED_TEST_SUITE(DLPackOwned, Kinds);

TYPED_TEST(DLPackOwned, ItsDeleterGivesTheMemoryBack) {
  RecordingMemory memory;
  TypeParam* given = nullptr;
  {
    Tensor array(memory, {2, 3}, DType::f64);
    const void* const data = array.data();
    given = dlpack::own<TypeParam>(std::move(array)).release();
    EXPECT_EQ(given->dl_tensor.data, data);
  }
  EXPECT_EQ(memory.live().size(), 1U);
  EXPECT_EQ(dlpack::view(*given).shape, (Shape{2, 3}));
  EXPECT_EQ(dlpack::view(*given).dtype, DType::f64);
  given->deleter(given);
  EXPECT_TRUE(memory.live().empty());
}

TYPED_TEST(DLPackOwned, WhatIsReceivedIsGivenBackOnce) {
  RecordingMemory memory;
  {
    dlpack::Owned<TypeParam> received = dlpack::own<TypeParam>(Tensor(memory, {4}, DType::boolean));
    EXPECT_EQ(dlpack::view(*received).dtype, DType::boolean);
    EXPECT_EQ(memory.live().size(), 1U);
  }
  EXPECT_TRUE(memory.live().empty());
}

TYPED_TEST(DLPackOwned, WithoutADeleterNothingIsCalled) {
  TypeParam forever{};
  forever.deleter = nullptr;
  EXPECT_NO_THROW(dlpack::Owned<TypeParam>{&forever}.reset());
}

#ifdef DLPACK_MAJOR_VERSION
TEST_F(DLPackTest, AReadOnlyArrayHasNoMutableView) {
  DLManagedTensorVersioned managed{};
  managed.version = {1, 0};
  managed.dl_tensor = foreign.tensor;
  EXPECT_EQ(dlpack::view(managed).data, values.data());
  managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  expect_error(Errc::invalid_argument, {"read-only"}, [&] { dlpack::view(managed); });
  EXPECT_EQ(dlpack::view(std::as_const(managed)).data, values.data());
}

TEST_F(DLPackTest, AnotherAbiIsNotLookedInto) {
  DLManagedTensorVersioned managed{};
  managed.version = {2, 0};
  managed.dl_tensor.ndim = -5;  // Its refusal would have another text.
  for (const auto& look : std::vector<std::function<void()>>{
           [&] { dlpack::view(managed); }, [&] { dlpack::view(std::as_const(managed)); }})
    expect_error(Errc::invalid_argument, {"ABI version 2"}, look);
}

TEST_F(DLPackTest, WhatIsGivenAwayTellsItsVersion) {
  const auto owned = dlpack::own<DLManagedTensorVersioned>(Tensor(host_memory(), {2}, DType::f32));
  EXPECT_EQ(owned->version.major, 1U);
  EXPECT_EQ(owned->flags, 0U);
}
#endif

}  // namespace
}  // namespace tutti
