#include <atomic>
#include <type_traits>

#include <tutti/coalesce.hpp>

#include "nccl/groups.hpp"

// NCCL's group belongs to the thread that opened it, and swallows every later call while it is
// open. So whatever fails between ncclGroupStart() and ncclGroupEnd(), it has to be closed.

namespace tutti::test::nccl_double {
namespace {

/// Which call between start and end fails, counted from 0, on device 1. Each group of NCCL lies
/// within one thread; a test runs one operation at a time.
std::atomic<int> failing{-1};
std::atomic<int> reached{0};
thread_local int depth = 0;

bool fails_now() {
  int device = 0;
  cuda().get_device(&device);
  return depth > 0 && device == 1 && failing >= 0 && reached++ == failing;
}

/// A function of NCCL's table which counts, and fails when it is its turn.
template <auto field>
struct Counted;
template <typename Result, typename... Args, Result (*backend::nccl::NcclApi::*field)(Args...)>
struct Counted<field> {
  static Result call(Args... args) {
    if constexpr (std::is_same_v<Result, ncclResult_t>)
      if (fails_now()) return ncclInternalError;
    return (nccl().*field)(args...);
  }
};

backend::nccl::Apis counted_apis() {
  static const backend::nccl::NcclApi api = [] {
    backend::nccl::NcclApi all = nccl();
    all.all_reduce = Counted<&backend::nccl::NcclApi::all_reduce>::call;
    all.reduce = Counted<&backend::nccl::NcclApi::reduce>::call;
    all.broadcast = Counted<&backend::nccl::NcclApi::broadcast>::call;
    all.all_gather = Counted<&backend::nccl::NcclApi::all_gather>::call;
    all.reduce_scatter = Counted<&backend::nccl::NcclApi::reduce_scatter>::call;
    all.send = Counted<&backend::nccl::NcclApi::send>::call;
    all.recv = Counted<&backend::nccl::NcclApi::recv>::call;
    all.group_start = [] {
      const ncclResult_t result = nccl().group_start();
      ++depth;
      return result;
    };
    all.group_end = [] {
      const bool fails = depth == 1 && fails_now();
      --depth;
      const ncclResult_t result = nccl().group_end();
      return fails ? ncclInternalError : result;
    };
    return all;
  }();
  return {&api, &cuda()};
}

using Verb = std::function<void(const Member& at, const TensorView& in, const TensorView& out)>;

class Closing : public Double {
 protected:
  /// Blocks of this many floats are not padded.
  static constexpr std::int64_t large = 200'000;

  static TensorView part(const TensorView& array, std::int64_t count) {
    return {array.data, array.dtype, {count}, array.device};
  }

  /// Fails each call that `verb` makes between start and end in turn. Every time both ranks hear
  /// of it, and the next group is made and used by the same threads.
  static void expect_closed(int calls, const Verb& verb) {
    for (int turn = 0; turn <= calls; ++turn) {
      SCOPED_TRACE(turn);
      reached = 0;
      PerRank<std::string> errors(2);
      on_groups(2,
                [&](const Member& at) {
                  const TensorView in = at.make(2 * large);
                  const TensorView out = at.make(2 * large);
                  at.fill(in, 1);
                  at.group.barrier();
                  if (at.rank == 1) failing = turn;
                  try {
                    verb(at, in, out);
                    if (at.rank == 1) failing = -1;
                    at.group.barrier();
                  } catch (const Error& error) {
                    errors[at.rank] = error.what();
                  }
                  if (at.rank == 1) failing = -1;
                  EXPECT_EQ(depth, 0) << "the group of NCCL is still open";
                  for (const TensorView& array : {in, out}) at.free(array);
                },
                {.apis = counted_apis()});
      for (const std::string& error : errors.all()) {
        if (turn == calls)  // Then there is no such call.
          EXPECT_EQ(error, "");
        else
          EXPECT_NE(error.find("failed: "), std::string::npos) << error;
      }
    }
    EXPECT_EQ(reached, calls);
  }
};

TEST_F(Closing, AfterEveryCallOfAReduction) {
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_reduce(in, out, ReduceOp::sum, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_reduce(in, out, ReduceOp::premul(2), {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.reduce(in, out, 1, ReduceOp::sum, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.reduce_scatter(in, part(out, large), {}, ReduceOp::sum, {.stream = at.stream()});
  });
  expect_closed(3, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.reduce_scatter(part(in, 30), part(out, 10 + 10 * at.rank), {10, 20}, ReduceOp::sum,
                            {.stream = at.stream()});
  });
}

TEST_F(Closing, AfterEveryCallOfAMove) {
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView&) {
    at.group.broadcast(in, 0, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_gather(part(in, large), out, {}, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_gather(part(in, 1 + at.rank), part(out, 3), {1, 2}, {.stream = at.stream()});
  });
  expect_closed(3, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_gather(part(in, at.rank == 0 ? large : 1), part(out, large + 1), {large, 1},
                        {.stream = at.stream()});
  });
  expect_closed(3, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.all_to_all(in, out, {}, {}, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.gather(part(in, large), out, 0, {}, {.stream = at.stream()});
  });
  expect_closed(2, [](const Member& at, const TensorView& in, const TensorView& out) {
    at.group.scatter(in, part(out, large), 1, {}, {.stream = at.stream()});
  });
}

TEST_F(Closing, AfterEveryCallOfSeveralTogether) {
  expect_closed(5, [](const Member& at, const TensorView& in, const TensorView& out) {
    const CallOptions options{.stream = at.stream()};
    const auto at_row = [](const TensorView& array, std::int64_t row, std::int64_t count) {
      return TensorView{static_cast<float*>(array.data) + row, DType::f32, {count}, array.device};
    };
    Coalesce together(at.group);
    (void)at.group.all_reduce_async(at_row(in, 0, 10), at_row(out, 0, 10), ReduceOp::sum, options);
    (void)at.group.broadcast_async(at_row(in, 10, 20), 0, options);
    (void)at.group.all_to_all_async(at_row(in, 30, 4), at_row(out, 30, 4), {}, {}, options);
    together.launch().wait();
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
