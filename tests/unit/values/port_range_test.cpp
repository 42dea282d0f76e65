#include "values/port_range.hpp"

#include <cerrno>
#include <set>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"

namespace tutti::internal {
namespace {

using test::expect_error;
using test::ScopedVariables;

TEST(PortRange, IsThatOfTheVariable) {
  const ScopedVariables unset{{"TUTTI_PORTS", nullptr}};
  EXPECT_FALSE(port_range().has_value());
  const ScopedVariables set{{"TUTTI_PORTS", "29800-29850"}};
  EXPECT_EQ(port_range()->text(), "29800-29850");
  EXPECT_EQ(port_range()->size(), 51);
}

TEST(PortRange, AnotherValueIsRefusedByName) {
  for (const char* value : {"29800", "-29850", "29800-", "0-1", "1-65536", "2-1", "1 - 2", "a-b"}) {
    const ScopedVariables set{{"TUTTI_PORTS", value}};
    expect_error(Errc::invalid_argument, {"TUTTI_PORTS", value, "29800-29850"},
                 [] { (void)port_range(); });
  }
}

TEST(ListenAtAnyPort, TriesEachPortOfTheRangeButThoseOfJobsUntilOneIsFree) {
  const ScopedVariables set{{"TUTTI_PORTS", "7-9"}};
  std::set<int> tried;
  const auto all_are_used = [&](int port) {
    tried.insert(port);
    return EADDRINUSE;
  };
  expect_error(Errc::resource_exhausted, {"a test: ", "TUTTI_PORTS, 7-9"},
               [&] { (void)listen_at_any_port("a test", all_are_used); });
  EXPECT_EQ(port_range()->of_jobs().text(), "7-7");
  EXPECT_EQ(tried, (std::set<int>{8, 9}));
  EXPECT_EQ(listen_at_any_port("", [](int port) { return port == 8 ? 0 : EADDRINUSE; }), 0);
  EXPECT_EQ(listen_at_any_port("", [](int) { return EACCES; }), EACCES);
  const ScopedVariables unset{{"TUTTI_PORTS", nullptr}};
  EXPECT_EQ(listen_at_any_port("", [](int port) { return port; }), 0) << "any free port";
}

}  // namespace
}  // namespace tutti::internal
