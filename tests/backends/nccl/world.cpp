#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "backends/gpu/own_default_stream.hpp"
#include "backends/nccl/double/double.hpp"

// The backend nccl in the table of a conformance suite, over the double of its libraries: rank r on
// device r unless another one is named, or all ranks on device 0, with a copy of NCCL each. A rule
// of theirs that a case breaks is a failure of that case.

namespace tutti::backend::nccl_double {

namespace {

namespace test_double = tutti::test::nccl_double;

std::unique_ptr<Backend> make(const BackendInit& init) {
  BackendInit on_device = init;
  if (init.device.type == DeviceType::cpu) on_device.device = {DeviceType::cuda, init.rank};
  return nccl::make_nccl(on_device, test_double::apis());
}

class Rules final : public testing::EmptyTestEventListener {
 public:
  static void report(const char* when) {
    for (const std::string& violation : test_double::take_violations())
      ADD_FAILURE() << when << violation;
  }

 private:
  void OnTestEnd(const testing::TestInfo&) override { report(""); }
};

/// Its TearDown() runs after that of the shared groups.
class Leftovers final : public testing::Environment {
  void SetUp() override { test_double::set_messages_side_by_side(true); }
  void TearDown() override {
    gpu::end_default_streams();
    test_double::check_nothing_is_left();
    Rules::report("at the end: ");
  }
};

// Before main(): environments are torn down in the reverse order of their making.
[[maybe_unused]] const bool installed = [] {
  testing::AddGlobalTestEnvironment(new Leftovers);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  // A listener that adds failures has to come before the one that prints them.
  auto* printer = listeners.Release(listeners.default_result_printer());
  listeners.Append(new Rules);
  listeners.Append(printer);
  return true;
}();

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl_double",
    .summary = "the backend nccl over a double of NCCL and CUDA",
    .serves = [](Device) noexcept { return true; },
    .unavailable = [] { return std::string(); },
    .make = make,
    .one_process = true,
    .adopts = true,
    .device_count = [] { return test_double::device_count; },
};

}  // namespace tutti::backend::nccl_double

namespace tutti::backend::nccl_copies_double {

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl_copies_double",
    .summary = "the backend nccl over the double, with all ranks on one device",
    .serves = [](Device) noexcept { return true; },
    .unavailable = [] { return std::string(); },
    .make =
        [](const BackendInit& init) {
          BackendInit on_device = init;
          on_device.device = {DeviceType::cuda, 0};
          nccl::Apis apis = test::nccl_double::apis();
          apis.nccl = &test::nccl_double::nccl_copy(init.rank);
          apis.cuda = &gpu::with_own_default_stream(*apis.cuda, 0, init.rank);
          return nccl::make_nccl(on_device, apis);
        },
    .one_process = true,
    .adopts = true,
    .device_count = [] { return 1; },
};

}  // namespace tutti::backend::nccl_copies_double
