#include "conformance/cells.hpp"
#include "support/fault_backend.hpp"

// A backend with faults: the errors of the group.

namespace tutti::test {
namespace {

class FaultsIn : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }

  /// A fresh group whose last rank has these faults.
  void on_faulty_ranks(const Faults& faults, const std::function<void(ProcessGroup&)>& body,
                       std::chrono::nanoseconds timeout = group_timeout) const {
    const auto adjust = [&](GroupOptions& options) {
      if (options.rank != last()) return;
      options.decorate = [faults](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
        return std::make_unique<FaultBackend>(std::move(inner), faults);
      };
    };
    on_fresh_ranks(world(), body, {.timeout = timeout, .adjust = adjust});
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, FaultsIn, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(FaultsIn, ASlowRankOnlyCostsTime) {
  on_faulty_ranks({.delay = 10ms}, [](ProcessGroup& group) {
    for (int i = 0; i < 3; ++i) expect_usable(group);
  });
}

// The rank whose transport failed has the cause; its peers receive it, and no rank waits for long.
TEST_P(FaultsIn, AFailedLaunchBreaksTheGroupOnEveryRank) {
  on_faulty_ranks({.fail_at = 1}, [&](ProcessGroup& group) {
    expect_usable(group);
    const Buffer data(group, array_of<float>({1}));
    const auto start = std::chrono::steady_clock::now();
    if (group.rank() == last())
      expect_error(Errc::backend, {"injected fault", "all_reduce"},
                   [&] { group.all_reduce(data); });
    else
      expect_error({Errc::aborted, Errc::peer_lost, Errc::backend}, {"injected fault"},
                   [&] { group.all_reduce(data); });
    expect_error(Errc::aborted, {"injected fault"}, [&] { group.barrier(); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  });
}

TEST_P(FaultsIn, AFailedAsynchronousLaunchBreaksTheGroupToo) {
  on_faulty_ranks({.fail_at = 1}, [&](ProcessGroup& group) {
    expect_usable(group);
    const Buffer data(group, array_of<float>({1}));
    expect_error({Errc::aborted, Errc::peer_lost, Errc::backend}, {"injected fault"},
                 [&] { group.all_reduce_async(data).wait(); });
    expect_error(Errc::aborted, {"injected fault"}, [&] { group.barrier(); });
  });
}

TEST_P(FaultsIn, ALostCallIsATimeoutThatNamesTheRank) {
  on_faulty_ranks(
      {.drop_at = 1},
      [&](ProcessGroup& group) {
        expect_usable(group);
        const Buffer data(group, array_of<float>({1}));
        if (group.rank() == last()) {
          group.all_reduce(data);  // It has seen no error.
          expect_error({Errc::aborted, Errc::timeout}, {}, [&] { group.barrier(); });
        } else {
          expect_error({Errc::timeout, Errc::aborted, Errc::peer_lost}, {std::to_string(last())},
                       [&] { group.all_reduce(data); });
        }
        expect_error(Errc::aborted, {}, [&] { group.barrier(); });
      },
      500ms);
}

TEST_P(FaultsIn, ACorruptedByteIsSeenByTheRankThatHasIt) {
  on_faulty_ranks({.corrupt_at = 0}, [&](ProcessGroup& group) {
    const Buffer data(group, array_of<float>({1}));
    group.all_reduce(data);
    const Array want = array_of<float>({static_cast<float>(group.size())});
    EXPECT_EQ(static_cast<bool>(same(data.read(), want)), group.rank() != last());
  });
}

}  // namespace
}  // namespace tutti::test
