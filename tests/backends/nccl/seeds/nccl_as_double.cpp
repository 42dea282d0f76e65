#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/nccl/double/double.hpp"

// For programs of docs/examples: their backend "nccl" is the one over the double. A rule of NCCL's
// that the program breaks, or what it leaves behind, is printed and ends it with status 1.

namespace tutti::backend::nccl_as_double {

namespace {

namespace test_double = tutti::test::nccl_double;

struct Rules {
  ~Rules() {
    test_double::check_nothing_is_left();
    const auto violations = test_double::take_violations();
    for (const std::string& violation : violations) std::fprintf(stderr, "%s\n", violation.c_str());
    if (!violations.empty()) std::_Exit(1);
  }
};
[[maybe_unused]] const Rules rules;

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl",
    .summary = "the backend nccl over a double of NCCL and CUDA",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cuda; },
    .unavailable = [] { return std::string(); },
    .make = [](const BackendInit& init) { return nccl::make_nccl(init, test_double::apis()); },
    .device_count = [] { return test_double::device_count; },
};

}  // namespace tutti::backend::nccl_as_double
