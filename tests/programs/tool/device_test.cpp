#include "common/device.hpp"

#include <cstdint>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "bench/staging.hpp"
#include "common/exit_code.hpp"
#include "support/memories.hpp"

// The meaning of --device, and access to the bytes of device arrays.

namespace tutti::tool {
namespace {

BackendEntry with_devices(int count) {
  BackendEntry entry{.name = "some",
                     .summary = "",
                     .serves = [](Device) noexcept { return true; },
                     .unavailable = nullptr,
                     .make = nullptr};
  if (count == 3) entry.device_count = [] { return 3; };
  if (count == 1) entry.device_count = [] { return 1; };
  return entry;
}

Failure failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Failure(Exit::ok, "");
}

TEST(Device, ADeviceThatIsNoneIsAUsageErrorThatSaysWhatThereIs) {
  EXPECT_EQ(parse_device("cpu"), DeviceRequest());
  EXPECT_EQ(parse_device("cuda"), (DeviceRequest{DeviceType::cuda, {}}));
  EXPECT_EQ(parse_device("cuda:2"), (DeviceRequest{DeviceType::cuda, 2}));
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda0", "cuda:1.5"}) {
    const Failure failure = failure_of([&] { (void)parse_device(text); });
    EXPECT_EQ(failure.code(), Exit::usage) << text;
    EXPECT_NE(std::string(failure.what()).find("--device"), std::string::npos) << failure.what();
  }
}

TEST(Device, RanksOfAHostTakeTurnsUnlessOneDeviceIsNamed) {
  const DevicePlacement turns({DeviceType::cuda, {}}, with_devices(3));
  EXPECT_EQ(turns.of(0), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(turns.of(2), (Device{DeviceType::cuda, 2}));
  EXPECT_EQ(turns.of(4), (Device{DeviceType::cuda, 1}));
  const DevicePlacement all_on_two({DeviceType::cuda, 2}, with_devices(3));
  EXPECT_EQ(all_on_two.of(0), (Device{DeviceType::cuda, 2}));
  EXPECT_EQ(all_on_two.of(1), (Device{DeviceType::cuda, 2}));
  const DevicePlacement unknown({DeviceType::cuda, {}}, with_devices(0));
  EXPECT_EQ(unknown.of(5), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(DevicePlacement({}, with_devices(3)).of(1), Device());
}

TEST(Device, ADeviceThatIsNotThereIsUnavailable) {
  const Failure failure = failure_of([] {
    DevicePlacement({DeviceType::cuda, 1}, with_devices(1));
  });
  EXPECT_EQ(failure.code(), Exit::unavailable);
  EXPECT_STREQ(failure.what(), "--device cuda:1: this machine has 1 such device");
}

/// Memory that the tool can access only through copy().
class Elsewhere final : public test::PassingMemory {
 public:
  Device device() const noexcept override { return {DeviceType::cuda, 0}; }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    PassingMemory::copy(to, from, bytes, stream);
    ++copies;
  }
  int copies = 0;
};

TEST(Device, PiecesOfALargeArrayArriveOnceAndInPlace) {
  Elsewhere memory;
  const std::size_t bytes = (std::size_t{9} << 20) + 24;
  Tensor array(memory, Shape{static_cast<std::int64_t>(bytes)}, DType::u8);
  const auto value = [](std::size_t at) { return static_cast<std::byte>(at % 251); };
  write(memory, array.data(), bytes, [&](std::byte* piece, std::size_t at, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) piece[i] = value(at + i);
  });
  EXPECT_EQ(memory.copies, 3);
  std::size_t seen = 0;
  std::size_t wrong = 0;
  read(memory, array.data(), bytes, [&](const std::byte* piece, std::size_t at, std::size_t n) {
    EXPECT_EQ(at, seen);
    for (std::size_t i = 0; i < n; ++i)
      if (piece[i] != value(at + i)) ++wrong;
    seen += n;
  });
  EXPECT_EQ(seen, bytes);
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace tutti::tool
