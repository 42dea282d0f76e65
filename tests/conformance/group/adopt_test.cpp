#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "conformance/cells.hpp"

namespace tutti::test {
namespace {

class Adoption : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Adoption, testing::ValuesIn(worlds({1})), CaseName());

// Adoption of a real communicator is tested with the backend that supports it.
TEST_P(Adoption, WhatIsNoCommunicatorIsRefusedByName) {
  for (const BackendEntry& entry : backends()) {
    if (entry.name != GetParam().backend) continue;
    GroupOptions options = group_options(GetParam(), 0, make_memory_store());
    options.adopt = AdoptedCommunicator{};
    if (entry.adopts)
      expect_error(Errc::invalid_argument, {"to adopt is null"},
                   [&] { ProcessGroup::create(options); });
    else
      expect_error(Errc::unsupported, {"'" + GetParam().backend + "' cannot adopt"},
                   [&] { ProcessGroup::create(options); });
  }
}

}  // namespace
}  // namespace tutti::test
