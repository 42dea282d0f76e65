#include <tutti/tensor.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/memories.hpp"

namespace tutti {
namespace {

using test::expect_error;
using test::FailingMemory;
using test::PassingMemory;
using test::RecordingMemory;

/// Memory of a device, which the host could not read.
class DeviceMemory final : public RecordingMemory {
 public:
  Device device() const noexcept override { return {DeviceType::extension, 5}; }
};

/// Of a group that may end: its Tensors keep it.
class SharedMemory final : public PassingMemory, public std::enable_shared_from_this<SharedMemory> {
 public:
  explicit SharedMemory(int& alive) : alive_(alive) { ++alive_; }
  ~SharedMemory() override { --alive_; }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    EXPECT_EQ(alive_, 1) << "the memory ended before its block";
    PassingMemory::release(data, bytes, stream);
  }
  std::shared_ptr<const void> lifetime() const noexcept override { return shared_from_this(); }

 private:
  int& alive_;
};

TEST(Tensor, KeepsTheMemoryThatSharesItsLifetime) {
  int alive = 0;
  auto memory = std::make_shared<SharedMemory>(alive);
  Tensor first(*memory, {4}, DType::f32);
  Tensor second(*memory, {4}, DType::f32);
  memory.reset();
  EXPECT_EQ(alive, 1);
  first = Tensor();
  EXPECT_EQ(alive, 1);
  Tensor third = std::move(second);
  second = Tensor(host_memory(), {1}, DType::u8);
  EXPECT_EQ(alive, 1);
  third = std::move(second);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(host_memory().lifetime(), nullptr);
}

// Views.

static_assert(std::convertible_to<std::vector<float>&, TensorView>);
static_assert(std::convertible_to<std::array<float, 3>&, TensorView>);
static_assert(std::convertible_to<std::span<float>, TensorView>, "a span outlives itself");
static_assert(!std::convertible_to<std::vector<float>, TensorView>, "a temporary does not");
static_assert(!std::convertible_to<std::vector<float>, ConstTensorView>);
static_assert(!std::convertible_to<const std::vector<float>&, TensorView>);
static_assert(!std::convertible_to<std::span<const float>, TensorView>);
static_assert(std::convertible_to<const std::vector<float>&, ConstTensorView>);
static_assert(std::convertible_to<std::span<const float>, ConstTensorView>);
static_assert(std::convertible_to<TensorView, ConstTensorView>);
static_assert(!std::convertible_to<ConstTensorView, TensorView>);
static_assert(!std::convertible_to<std::vector<bool>&, TensorView>, "it has no bytes");
static_assert(!std::convertible_to<std::vector<std::string>&, TensorView>);

TEST(TensorView, OfARangeIsItsMemoryInOneDimension) {
  std::vector<double> values(7);
  const TensorView view = values;
  EXPECT_EQ(view.data, values.data());
  EXPECT_EQ(view.dtype, DType::f64);
  EXPECT_EQ(view.shape, Shape{7});
  EXPECT_EQ(view.device, Device{});
  EXPECT_EQ(view.bytes(), 56U);
  EXPECT_EQ(view.row_bytes(), 8U);

  const std::array<std::int32_t, 2> constant{1, 2};
  const ConstTensorView read = constant;
  EXPECT_EQ(read.data, constant.data());
  EXPECT_EQ(read.dtype, DType::i32);
  EXPECT_EQ(read.shape, Shape{2});
}

TEST(TensorView, DefaultMadeHasNoElements) {
  EXPECT_EQ(TensorView().data, nullptr);
  EXPECT_EQ(TensorView().bytes(), 0U);
  EXPECT_EQ(ConstTensorView().bytes(), 0U);
}

TEST(TensorView, ConstTwinIsTheSameArray) {
  std::vector<float> values(6);
  const TensorView view(values.data(), DType::f32, {2, 3}, {DeviceType::cuda, 1});
  const ConstTensorView twin = view;
  EXPECT_EQ(twin.data, view.data);
  EXPECT_EQ(twin.dtype, view.dtype);
  EXPECT_EQ(twin.shape, view.shape);
  EXPECT_EQ(twin.device, view.device);
  EXPECT_EQ(twin.bytes(), 24U);
  EXPECT_EQ(twin.row_bytes(), 12U);
}

TEST(TensorView, BytesAreCountedIn64Bits) {
  const TensorView view(nullptr, DType::f64, {3, std::int64_t{1} << 31});
  EXPECT_EQ(view.bytes(), std::size_t{3} << 34);
  EXPECT_EQ(view.row_bytes(), std::size_t{1} << 34);
}

TEST(View, GivesARangeAShape) {
  std::vector<float> values(6);
  const TensorView a = view(values, {2, 3});
  EXPECT_EQ(a.data, values.data());
  EXPECT_EQ(a.shape, (Shape{2, 3}));
  EXPECT_EQ(view(std::span<float>(values), {3, 2}).shape, (Shape{3, 2}));

  const std::vector<float>& constant = values;
  static_assert(std::same_as<decltype(view(constant, Shape())), ConstTensorView>);
  EXPECT_EQ(view(constant, {6, 1}).shape, (Shape{6, 1}));

  std::vector<float> one(1);
  EXPECT_EQ(view(one, {}).shape.ndim(), 0U);
  std::vector<float> none;
  EXPECT_EQ(view(none, {0, 5}).bytes(), 0U);
}

TEST(View, OfAnotherCountIsRefusedWithBothNumbers) {
  std::vector<float> values(6);
  expect_error(Errc::invalid_argument, {"6", "[2, 4]", "8"}, [&] { (void)view(values, {2, 4}); });
  expect_error(Errc::invalid_argument, {"6", "[5]"}, [&] { (void)view(values, {5}); });
  expect_error(Errc::invalid_argument, {"6", "[]", "1"}, [&] { (void)view(values, {}); });
  const auto& constant = values;
  expect_error(Errc::invalid_argument, {"6", "7"}, [&] { (void)view(constant, {7}); });
}

// The owner.

static_assert(!std::copy_constructible<Tensor> && !std::is_copy_assignable_v<Tensor>);
static_assert(std::is_nothrow_move_constructible_v<Tensor>);
static_assert(std::is_nothrow_move_assignable_v<Tensor>);
static_assert(std::convertible_to<Tensor&, TensorView>);
static_assert(std::convertible_to<const Tensor&, ConstTensorView>);
static_assert(!std::convertible_to<const Tensor&, TensorView>);
static_assert(!std::convertible_to<Tensor, TensorView>, "the array would be gone");
static_assert(!std::convertible_to<Tensor, ConstTensorView>);

TEST(Tensor, TakesExactlyItsBytesOnItsStreamAndGivesThemBack) {
  DeviceMemory memory;
  int queue = 0;
  const Stream stream{&queue};
  {
    Tensor tensor(memory, {3, 5}, DType::f32, stream);
    EXPECT_EQ(memory.live(), (std::vector<RecordingMemory::Block>{{tensor.data(), 60, stream}}));
    EXPECT_EQ(tensor.bytes(), 60U);
    EXPECT_EQ(tensor.device(), memory.device());
    EXPECT_EQ(tensor.shape(), (Shape{3, 5}));
    EXPECT_EQ(tensor.dtype(), DType::f32);
  }
  EXPECT_TRUE(memory.live().empty());
}

TEST(Tensor, ViewsAreItsArray) {
  DeviceMemory memory;
  Tensor tensor(memory, {2, 2}, DType::i64);
  const TensorView writable = tensor;
  EXPECT_EQ(writable.data, tensor.data());
  EXPECT_EQ(writable.dtype, DType::i64);
  EXPECT_EQ(writable.shape, (Shape{2, 2}));
  EXPECT_EQ(writable.device, memory.device());
  const Tensor& constant = tensor;
  const ConstTensorView readable = constant;
  EXPECT_EQ(readable.data, tensor.data());
  EXPECT_EQ(readable.shape, (Shape{2, 2}));
}

template <typename X>
concept HasValues = requires {
  std::declval<X>().template values<float>();
};
static_assert(HasValues<Tensor&> && HasValues<const Tensor&>);
static_assert(!HasValues<Tensor>, "the array would be gone");

TEST(Tensor, ValuesAreItsElements) {
  Tensor tensor(host_memory(), {2, 3}, DType::f32);
  const std::span<float> values = tensor.values<float>();
  EXPECT_EQ(values.data(), tensor.data());
  ASSERT_EQ(values.size(), 6U);
  values[5] = 7;
  const Tensor& constant = tensor;
  const std::span<const float> read = constant.values<float>();
  EXPECT_EQ(read[5], 7);
  EXPECT_EQ(tensor.view().values<float>().size(), 6U);
  EXPECT_EQ(constant.view().values<float>().size(), 6U);
}

TEST(Tensor, ValuesOfAnotherDTypeOrDeviceAreRefusedWithBothSides) {
  DeviceMemory memory;
  Tensor host(host_memory(), {2}, DType::f32);
  const Tensor device(memory, {2}, DType::f32);
  expect_error(Errc::invalid_argument, {"values", "f32", "not f64"},
               [&] { (void)host.values<double>(); });
  expect_error(Errc::invalid_argument, {"values", "f32", "not i32"},
               [&] { (void)device.values<std::int32_t>(); });
  expect_error(Errc::invalid_argument, {"values", to_string(memory.device()), "not cpu", "copy"},
               [&] { (void)device.values<float>(); });
}

TEST(Tensor, WithoutElementsStillHasAnAddress) {
  RecordingMemory memory;
  {
    const Tensor tensor(memory, {0, 4}, DType::f64);
    EXPECT_NE(tensor.data(), nullptr);
    EXPECT_EQ(tensor.bytes(), 0U);
    EXPECT_EQ(memory.live().at(0).bytes, 0U);
  }
  EXPECT_TRUE(memory.live().empty());
}

TEST(Tensor, MovesWithoutAskingTheMemory) {
  RecordingMemory memory;
  {
    Tensor first(memory, {4}, DType::u8);
    void* data = first.data();
    Tensor second = std::move(first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(first.data(),
              nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state.
    EXPECT_EQ(memory.allocations(), 1);
    EXPECT_EQ(memory.live().size(), 1U);
  }
  EXPECT_TRUE(memory.live().empty());
}

TEST(Tensor, MoveAssignmentGivesBackTheOldArrayToItsOwnMemory) {
  RecordingMemory one;
  RecordingMemory other;
  {
    Tensor target(one, {4}, DType::u8);
    target = Tensor(other, {9}, DType::u8);
    EXPECT_TRUE(one.live().empty());
    EXPECT_EQ(other.live(), (std::vector<RecordingMemory::Block>{{target.data(), 9}}));
  }
  EXPECT_TRUE(other.live().empty());
}

TEST(Tensor, DefaultMadeOwnsNothing) {
  const Tensor tensor;
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.bytes(), 0U);
}

TEST(Tensor, OfAVectorOrAViewIsACopy) {
  std::vector<std::int32_t> input{1, 2, 3, 4, 5, 6};
  RecordingMemory memory;
  {
    const Tensor line(input);
    const Tensor table(view(input, {3, 2}), memory);
    const Tensor again(table.view());
    input.assign(6, 0);
    EXPECT_EQ(memory.live().size(), 1U);
    EXPECT_EQ(line.shape(), Shape{6});
    EXPECT_EQ(again.shape(), (Shape{3, 2}));
    for (const Tensor* each : {&line, &table, &again})
      EXPECT_EQ(
          std::vector(each->values<std::int32_t>().begin(), each->values<std::int32_t>().end()),
          (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  }
  EXPECT_TRUE(memory.live().empty());
  EXPECT_EQ(Tensor(ConstTensorView(nullptr, DType::u8, {0, 4})).shape(), (Shape{0, 4}));
  DeviceMemory device;
  const Tensor there(device, {2}, DType::f32);
  expect_error(Errc::invalid_argument, {"extension:5", "cpu"}, [&] { (void)Tensor(there.view()); });
}

TEST(Tensor, BytesThatOverflowAreRefusedWithBothNumbersBeforeTheMemoryIsAsked) {
  RecordingMemory memory;
  constexpr std::int64_t count = std::numeric_limits<std::int64_t>::max() / 8 + 1;
  expect_error(Errc::count_overflow, {std::to_string(count), "8 bytes"},
               [&] { (void)Tensor(memory, {count}, DType::f64); });
  EXPECT_EQ(memory.allocations(), 0);
}

TEST(Tensor, AMemoryThatIsFullIsPassedOnAndGetsNothingBack) {
  FailingMemory full([](std::size_t) { fail(Errc::resource_exhausted, "the memory is full"); });
  RecordingMemory memory(full);
  expect_error(Errc::resource_exhausted, {"full"}, [&] { (void)Tensor(memory, {4}, DType::f32); });
  EXPECT_EQ(memory.allocations(), 0);
}

}  // namespace
}  // namespace tutti
