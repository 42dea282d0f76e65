#include "values/host_identity.hpp"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"

namespace tutti::internal {
namespace {

using test::ScopedVariables;

TEST(HostIdentity, IsThatOfThisProcess) {
  const auto own = host_identity();
  EXPECT_EQ(own.boot.size(), 36U) << own.boot;
  EXPECT_TRUE(own.network.starts_with("net:")) << own.network;
  EXPECT_EQ(difference(own, host_identity()), "");
}

TEST(HostIdentity, EachDifferenceIsNamedWithBothSides) {
  const HostIdentity a{"boot", "net", "pid", "users", "user"};
  const auto differs = [&](std::string HostIdentity::*part) {
    auto b = a;
    b.*part = "other";
    return difference(a, b);
  };
  EXPECT_EQ(differs(&HostIdentity::boot), "the boot id (boot and other)");
  EXPECT_EQ(differs(&HostIdentity::network),
            "the network namespace (net and other; containers of one pod share it; docker: "
            "--network=host)");
  EXPECT_EQ(differs(&HostIdentity::processes),
            "the process namespace (pid and other; pod: shareProcessNamespace: true; docker: "
            "--pid=host)");
  EXPECT_EQ(difference({"boot", "net", "pid", "users", "user", true},
                       {"boot", "net", "other", "users", "user", true}),
            "");
  EXPECT_EQ(differs(&HostIdentity::users),
            "the user namespace (users and other; pod: hostUsers: true; docker: --userns=host)");
  EXPECT_EQ(differs(&HostIdentity::user), "the user (user and other; start all ranks as one user)");
  const auto both = difference(a, {"boot", "N", "P", "users", "user"});
  EXPECT_NE(both.find(") and the process namespace (pid and P; "), std::string::npos) << both;
  EXPECT_EQ(difference(a, {"B", "N", "P", "U", "u"}), "the boot id (boot and B)");
}

TEST(HostOf, IsTheIdentityOfTheProcessUnlessNamesAreGiven) {
  {
    const ScopedVariables none{{"TUTTI_HOSTS", nullptr}};
    EXPECT_EQ(host_of(0), host_of(1));
    EXPECT_NE(host_of(0).find(host_identity().boot), std::string::npos) << host_of(0);
  }
  const ScopedVariables names{{"TUTTI_HOSTS", "a,b,b"}};
  EXPECT_NE(host_of(0), host_of(1));
  EXPECT_EQ(host_of(1), host_of(2));
  EXPECT_EQ(host_of(3), host_of(0)) << "the list repeats";
}

TEST(HostOf, EveryRankHasAName) {
  for (const char* list : {",", "a,", ",a", "a,,b"}) {
    const ScopedVariables names{{"TUTTI_HOSTS", list}};
    test::expect_error(Errc::invalid_argument, {fmt::format("TUTTI_HOSTS is '{}'", list)},
                       [] { (void)host_of(0); });
  }
}

}  // namespace
}  // namespace tutti::internal
