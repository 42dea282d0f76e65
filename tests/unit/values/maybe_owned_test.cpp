#include <tutti/maybe_owned.hpp>

#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/memories.hpp"

namespace tutti {
namespace {

using test::RecordingMemory;

// A view of a temporary would outlive its array; an input is wrapped only explicitly.
static_assert(!std::copy_constructible<MaybeOwned> && !std::is_copy_assignable_v<MaybeOwned>);
static_assert(std::is_nothrow_move_constructible_v<MaybeOwned>);
static_assert(std::is_nothrow_move_assignable_v<MaybeOwned>);
static_assert(std::convertible_to<const MaybeOwned&, ConstTensorView>);
static_assert(std::convertible_to<Tensor, MaybeOwned>);
static_assert(!std::convertible_to<MaybeOwned, ConstTensorView>);
static_assert(!std::convertible_to<ConstTensorView, MaybeOwned>);
static_assert(std::constructible_from<MaybeOwned, const ConstTensorView&>);

Tensor numbers(Memory& memory, std::initializer_list<std::int32_t> values) {
  Tensor tensor(memory, {static_cast<std::int64_t>(values.size())}, DType::i32);
  std::memcpy(tensor.data(), values.begin(), values.size() * sizeof(std::int32_t));
  return tensor;
}

TEST(MaybeOwned, OfATensorOwnsIt) {
  RecordingMemory memory;
  {
    Tensor tensor = numbers(memory, {1, 2, 3});
    const void* data = tensor.data();
    const MaybeOwned value = std::move(tensor);
    EXPECT_EQ(memory.live().size(), 1U);
    EXPECT_EQ(memory.allocations(), 1) << "it was moved, not copied";
    EXPECT_EQ(value.data(), data);
    EXPECT_EQ(value.dtype(), DType::i32);
    EXPECT_EQ(value.shape(), Shape{3});
    EXPECT_EQ(value.bytes(), 12U);
    EXPECT_FALSE(value.is_input());
    const ConstTensorView view = value;
    EXPECT_EQ(view.data, data);
    EXPECT_EQ(value.view().shape, Shape{3});
  }
  EXPECT_EQ(memory.live().size(), 0U);
}

TEST(MaybeOwned, OfAnInputIsTheCallersMemory) {
  std::vector<double> input{1, 2, 3, 4};
  const MaybeOwned value{ConstTensorView(view(input, {2, 2}))};
  EXPECT_EQ(value.data(), input.data());
  EXPECT_EQ(value.dtype(), DType::f64);
  EXPECT_EQ(value.shape(), (Shape{2, 2}));
  EXPECT_EQ(value.bytes(), 32U);
  EXPECT_TRUE(value.is_input());
  input[0] = 7;
  EXPECT_EQ(*static_cast<const double*>(value.data()), 7);
}

TEST(MaybeOwned, DefaultMadeIsEmpty) {
  const MaybeOwned value;
  EXPECT_EQ(value.bytes(), 0U);
  EXPECT_EQ(value.data(), nullptr);
  EXPECT_FALSE(value.is_input());
}

TEST(MaybeOwned, MovesWithItsArray) {
  RecordingMemory memory;
  {
    MaybeOwned first = numbers(memory, {5});
    const void* data = first.data();
    MaybeOwned second = std::move(first);
    EXPECT_EQ(second.data(), data);
    MaybeOwned third = numbers(memory, {6, 7});
    third = std::move(second);
    EXPECT_EQ(memory.live().size(), 1U) << "what it had is released";
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.shape(), Shape{1});
    EXPECT_EQ(*static_cast<const std::int32_t*>(third.data()), 5);
  }
  EXPECT_EQ(memory.live().size(), 0U);
}

TEST(MaybeOwned, TakeGivesAnOwnArrayAway) {
  RecordingMemory memory;
  MaybeOwned value = numbers(memory, {1, 2});
  const void* data = value.data();
  {
    const Tensor taken = std::move(value).take();
    EXPECT_EQ(taken.data(), data);
    EXPECT_EQ(taken.shape(), Shape{2});
    EXPECT_EQ(memory.allocations(), 1);
  }
  EXPECT_EQ(memory.live().size(), 0U);
}

TEST(MaybeOwned, TakeOfAnInputIsACopyInTheMemoryThatWasAskedFor) {
  RecordingMemory memory;
  std::vector<std::int32_t> input{1, 2, 3, 4, 5, 6};
  {
    const Tensor taken = MaybeOwned(ConstTensorView(view(input, {3, 2}))).take(memory);
    EXPECT_EQ(memory.allocations(), 1);
    EXPECT_NE(taken.data(), input.data());
    EXPECT_EQ(taken.shape(), (Shape{3, 2}));
    EXPECT_EQ(taken.dtype(), DType::i32);
    input.assign(6, 0);
    const auto* copied = static_cast<const std::int32_t*>(taken.data());
    for (int i = 0; i < 6; ++i) EXPECT_EQ(copied[i], i + 1);
  }
  EXPECT_EQ(memory.live().size(), 0U);
  const Tensor none = MaybeOwned(ConstTensorView(nullptr, DType::u8, {0, 4})).take();
  EXPECT_EQ(none.shape(), (Shape{0, 4}));
}

}  // namespace
}  // namespace tutti
