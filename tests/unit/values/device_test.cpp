#include <tutti/device.hpp>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Device, TextHasTheIndexExceptForTheHost) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 1}), "cuda:1");
  EXPECT_EQ(to_string(Device{DeviceType::extension, 3}), "extension:3");
  EXPECT_EQ(to_string(Device{static_cast<DeviceType>(7), 2}), "device type 7:2");
}

TEST(Device, DevicesOfAnotherIndexAreNotEqual) {
  EXPECT_EQ((Device{DeviceType::cuda, 1}), (Device{DeviceType::cuda, 1}));
  EXPECT_NE((Device{DeviceType::cuda, 1}), (Device{DeviceType::cuda, 0}));
  EXPECT_NE((Device{DeviceType::cuda, 1}), (Device{DeviceType::extension, 1}));
}

// The DLPack bridge casts these values.
TEST(Device, TypesHaveTheNumbersOfDLPack) {
  EXPECT_EQ(static_cast<int>(DeviceType::cpu), 1);
  EXPECT_EQ(static_cast<int>(DeviceType::cuda), 2);
  EXPECT_EQ(static_cast<int>(DeviceType::extension), 12);
}

}  // namespace
}  // namespace tutti
