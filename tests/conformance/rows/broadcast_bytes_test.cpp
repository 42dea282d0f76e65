#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

class GatherBroadcastBytes : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherBroadcastBytes, testing::ValuesIn(worlds()), CaseName());

class GatherBroadcastBytesComparing : public GatherBroadcastBytes {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherBroadcastBytesComparing,
                         testing::ValuesIn(worlds_that_compare()), CaseName());

/// Contains every byte, zero included, and no two equal blocks in sequence.
std::string bytes_of(std::size_t length, int root) {
  std::string bytes(length, '\0');
  for (std::size_t i = 0; i < length; ++i)
    bytes[i] = static_cast<char>((i + i / 251 + index(root)) & 0xff);
  return bytes;
}

TEST_P(GatherBroadcastBytes, EveryRankGetsTheStringOfRoot) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root)
      for (const std::size_t length : {0U, 1U, 1015U, 1016U, 1017U, 5000U, 1U << 20}) {
        const std::string want = bytes_of(length, root);
        std::string bytes = group.rank() == root ? want : "what was here before";
        const auto before = calls_of(group);
        broadcast_bytes(group, bytes, root);
        EXPECT_TRUE(bytes == want) << length << " bytes of rank " << root;
        EXPECT_EQ(calls_of(group) - before, length <= 1016 ? 1U : 2U) << length << " bytes";
      }
  });
}

TEST_P(GatherBroadcastBytes, RefusalsLeaveTheStringAsItWas) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::string bytes = "kept";
    const auto expect_bad = [&](const std::vector<std::string>& texts,
                                const std::function<void()>& call) {
      expect_error(Errc::invalid_argument, texts, call);
      EXPECT_EQ(bytes, "kept");
    };
    for (const int root : {-1, group.size()})
      expect_bad({"broadcast", "root is " + std::to_string(root),
                  "ranks 0 to " + std::to_string(group.size() - 1)},
                 [&] { broadcast_bytes(group, bytes, root); });
    expect_bad({"timeout is -1 ns"}, [&] { broadcast_bytes(group, bytes, 0, {.timeout = -1ns}); });
    expect_usable(group);
  });
}

TEST_P(GatherBroadcastBytesComparing, DifferentRootsAreAMismatch) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::string bytes = "kept";
    const int root = group.rank() == 0 ? 0 : 1;
    expect_error(Errc::mismatch, {"root 0", "root 1"},
                 [&] { broadcast_bytes(group, bytes, root); });
    EXPECT_EQ(bytes, "kept");
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
