#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "backends/nccl/double/bare_rank.hpp"
#include "backends/nccl/groups.hpp"
#include "torch/c10d_backend.hpp"

#include "c10d_backends.hpp"
#include "fake_cuda.hpp"

// The backend of c10d with tensors on a device, over the double. Each test also fails if the double
// sees an array that is used without an order on the streams, or memory that is left.

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<::c10d::Work>;
using C10dBackend = c10::intrusive_ptr<::c10d::Backend>;

/// One rank of a group of the backend, which has two.
struct C10dRank {
  C10dBackend backend;
  int rank;
  c10::Device device;

  int peer() const { return 1 - rank; }
  at::Tensor full(at::IntArrayRef sizes, double value) const {
    return at::full(sizes, value, at::TensorOptions(at::kFloat).device(device));
  }
  at::Tensor row(std::int64_t n, double first) const {
    return (at::arange(n, at::kFloat) + first).to(device);
  }
  /// An array that a slow kernel of the current stream is about to write.
  at::Tensor late(double value) const {
    const auto made = full({100}, 0);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device);
    nccl_double::fill(static_cast<cudaStream_t>(stream.native_handle()), made.data_ptr<float>(),
                      100, static_cast<float>(value), nccl_double::slow);
    return made;
  }
  C10dWork sum(const at::Tensor& data, bool async = true) const {
    Tensors list{data};
    ::c10d::AllreduceOptions options;
    options.asyncOp = async;
    return backend->allreduce(list, options);
  }
};

void on_c10d_ranks(const std::string& device_backend,
                   const std::function<void(const C10dRank& at)>& body) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  on_cuda_threads(2, [&](int rank, c10::Device device) {
    without_nccl = false;
    const auto backend = c10d_door::make_backend({.store = store,
                                                  .rank = rank,
                                                  .size = 2,
                                                  .timeout = 10s,
                                                  .group = "g",
                                                  .backend = "gloo",
                                                  .device_backend = device_backend});
    try {
      body({backend, rank, device});
    } catch (...) {
      backend->abort();
      throw;
    }
    backend->shutdown();
  });
}

void expect_is(const at::Tensor& actual, const at::Tensor& expected) {
  const auto host = actual.cpu();
  EXPECT_TRUE(host.equal(expected.cpu())) << host << "\nis not\n" << expected.cpu();
}

template <typename E>
void expect_refused(const std::vector<std::string>& texts, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& error) {
    for (const auto& text : texts)
      EXPECT_NE(std::string(error.what_without_backtrace()).find(text), std::string::npos)
          << "no '" << text << "' in: " << error.what_without_backtrace();
  }
}

class C10dDevice : public nccl_double::Double, public testing::WithParamInterface<const char*> {
 protected:
  C10dDevice() { nccl_double::set_messages_side_by_side(true); }  // As the conformance suite.
  static bool over_nccl() { return std::string(GetParam()) == "nccl"; }
};
INSTANTIATE_TEST_SUITE_P(Over, C10dDevice, testing::Values("nccl", "gloo"),
                         [](const auto& of) { return std::string(of.param); });
using C10dOverNccl = nccl_double::Double;

void make_every_call(const C10dRank& at, bool async) {
  const auto& backend = at.backend;
  const double mine = at.rank + 1;
  const auto of = [&](auto options) {
    options.asyncOp = async;
    return options;
  };
  const auto wait = [](const C10dWork& work) { work->wait(); };

  Tensors data{at.full({3}, mine)};
  wait(backend->allreduce(data, of(::c10d::AllreduceOptions())));
  expect_is(data[0], at::full({3}, 3.0F));
  const auto matrix = at.full({2, 3}, mine);
  data = {matrix.t()};  // Not contiguous, so it is written through a copy.
  wait(backend->allreduce(data, of(::c10d::AllreduceOptions())));
  expect_is(matrix, at::full({2, 3}, 3.0F));
  data = {at.full({2}, mine), at.full({4}, 10 * mine)};
  wait(backend->allreduce_coalesced(data, of(::c10d::AllreduceCoalescedOptions())));
  expect_is(at::cat(data), at::cat(Tensors{at::full({2}, 3.0F), at::full({4}, 30.0F)}));

  ::c10d::BroadcastOptions from_one;
  from_one.rootRank = 1;
  data = {at.full({3}, mine).to(at::kShort)};
  wait(backend->broadcast(data, of(from_one)));
  expect_is(data[0], at::full({3}, 2, at::kShort));
  ::c10d::ReduceOptions to_one;
  to_one.rootRank = 1;
  data = {at.full({3}, mine)};
  wait(backend->reduce(data, of(to_one)));
  if (at.rank == 1) expect_is(data[0], at::full({3}, 3.0F));

  Tensors input{at.row(2, 2 * at.rank)};
  const auto whole = at::arange(4, at::kFloat);
  const auto room = [&] { return Tensors{at.full({2}, 0), at.full({2}, 0)}; };
  std::vector<Tensors> lists{room()};
  wait(backend->allgather(lists, input, of(::c10d::AllgatherOptions())));
  expect_is(at::cat(lists[0]), whole);
  auto out = at.full({4}, 0);
  wait(backend->_allgather_base(out, input[0], of(::c10d::AllgatherOptions())));
  expect_is(out, whole);
  lists = {room(), room()};
  Tensors inputs{input[0], at.row(2, 2 * at.rank)};
  wait(backend->allgather_coalesced(lists, inputs, of(::c10d::AllgatherOptions())));
  for (std::size_t i : {0U, 1U}) expect_is(at::cat(Tensors{lists[0][i], lists[1][i]}), whole);
  Tensors outputs{at.full({4}, 0), at.full({4}, 0)};
  wait(backend->allgather_into_tensor_coalesced(outputs, inputs, of(::c10d::AllgatherOptions())));
  for (const auto& each : outputs) expect_is(each, whole);

  ::c10d::GatherOptions gather_one;
  gather_one.rootRank = 1;
  lists = at.rank == 1 ? std::vector<Tensors>{room()} : std::vector<Tensors>{};
  wait(backend->gather(lists, input, of(gather_one)));
  if (at.rank == 1) expect_is(at::cat(lists[0]), whole);
  ::c10d::ScatterOptions scatter_one;
  scatter_one.rootRank = 1;
  lists =
      at.rank == 1 ? std::vector<Tensors>{{at.row(2, 0), at.row(2, 2)}} : std::vector<Tensors>{};
  outputs = {at.full({2}, 0)};
  wait(backend->scatter(outputs, lists, of(scatter_one)));
  expect_is(outputs[0], whole.narrow(0, 2 * at.rank, 2));

  const auto doubled = 2 * whole.narrow(0, 2 * at.rank, 2);
  lists = {{at.row(2, 0), at.row(2, 2)}};
  outputs = {at.full({2}, 0)};
  wait(backend->reduce_scatter(outputs, lists, of(::c10d::ReduceScatterOptions())));
  expect_is(outputs[0], doubled);
  auto all = at.row(4, 0);
  auto own = at.full({2}, 0);
  wait(backend->_reduce_scatter_base(own, all, of(::c10d::ReduceScatterOptions())));
  expect_is(own, doubled);
  inputs = {at.row(4, 0), at.row(4, 0)};
  outputs = {at.full({2}, 0), at.full({2}, 0)};
  wait(backend->reduce_scatter_tensor_coalesced(outputs, inputs,
                                                of(::c10d::ReduceScatterOptions())));
  for (const auto& each : outputs) expect_is(each, doubled);

  std::vector<std::int64_t> equal;
  const auto swapped =
      at::cat(Tensors{at::full({1}, at.rank, at::kFloat), at::full({1}, at.rank + 10, at::kFloat)});
  all = at::cat(Tensors{at.full({1}, 10 * at.rank), at.full({1}, 10 * at.rank + 1)});
  out = at.full({2}, 0);
  wait(backend->alltoall_base(out, all, equal, equal, of(::c10d::AllToAllOptions())));
  expect_is(out, swapped);
  inputs = {at.full({1}, 10 * at.rank), at.full({1}, 10 * at.rank + 1)};
  outputs = {at.full({1}, 0), at.full({1}, 0)};
  wait(backend->alltoall(outputs, inputs, of(::c10d::AllToAllOptions())));
  expect_is(at::cat(outputs), swapped);

  // As batch_isend_irecv(), which posts them one by one.
  Tensors received{at.full({2}, 0)};
  const auto receive = backend->recv(received, at.peer(), 7);
  const auto send = backend->send(input, at.peer(), 7);
  receive->wait();
  send->wait();
  expect_is(received[0], whole.narrow(0, 2 * at.peer(), 2));

  ::c10d::BarrierOptions barrier;
  barrier.device_ids = {at.rank};
  wait(backend->barrier(of(barrier)));
  wait(backend->barrier(of(::c10d::BarrierOptions())));
  backend->monitoredBarrier({}, true);

  data = {at::full({3}, static_cast<float>(mine))};  // Of the host, between those of the device.
  wait(backend->allreduce(data, of(::c10d::AllreduceOptions())));
  expect_is(data[0], at::full({3}, 3.0F));
}

TEST_P(C10dDevice, EveryCallGivesItsNumbers) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    for (const bool async : {false, true}) make_every_call(at, async);
    EXPECT_NE(c10d_door::describe(at.backend).find(at.device.str() + " " + GetParam()),
              std::string::npos)
        << c10d_door::describe(at.backend);
  });
}

/// Runs `body` with another stream than the current one.
void with_stream(const C10dRank& at, const std::function<void(const c10::Stream& other)>& body) {
  const c10::Stream other = c10::impl::VirtualGuardImpl(c10::kCUDA).getNewStream(at.device);
  body(other);
  other.synchronize();
  nccl_double::cuda().stream_destroy(static_cast<cudaStream_t>(other.native_handle()));
}

TEST_P(C10dDevice, ACallComesAfterItsStreamAndWaitMakesTheStreamWait) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();  // Makes the group.
    with_stream(at, [&](const c10::Stream& other) {
      const auto x = at.late(at.rank + 1);
      const auto work = at.sum(x);
      const c10::StreamGuard on_other(other);
      work->wait();
      EXPECT_EQ(work->isCompleted(), !over_nccl());  // The slow kernel has not run.
      expect_is(x, at::full({100}, 3.0F));           // Read on the other stream.
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->isSuccess());
    });
  });
}

TEST_P(C10dDevice, OutputsThatAreCopiedBackAreOrderedToo) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    with_stream(at, [&](const c10::Stream& other) {
      Tensors input{at.late(at.rank + 1)};
      std::vector<Tensors> lists{{at.full({100}, 0), at.full({100}, 0)}};
      const auto work = at.backend->allgather(lists, input, {});
      const c10::StreamGuard on_other(other);
      work->wait();
      for (int r = 0; r < 2; ++r)
        expect_is(lists[0][static_cast<std::size_t>(r)], at::full({100}, r + 1, at::kFloat));
    });
  });
}

TEST_P(C10dDevice, TheHostWaitsForABarrierAndTheStreamBeforeIt) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    ::c10d::BarrierOptions options;
    options.device_ids = {at.rank};
    for (const bool async : {false, true}) {
      const auto x = at.late(1);
      c10::Event written(c10::kCUDA);
      written.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(at.device));
      options.asyncOp = async;
      at.backend->barrier(options)->wait();
      EXPECT_TRUE(written.query());
    }
  });
}

TEST_P(C10dDevice, MemoryIsUsedAgainAfterTheStreamThatWaited) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();
    with_stream(at, [&](const c10::Stream& other) {
      auto x = at.late(at.rank + 1);
      auto work = at.sum(x);
      const c10::StreamGuard on_other(other);
      work->wait();
      work.reset();
      x.reset();  // Freed on the stream that made it, which has not waited for the call.
    });
  });
}

TEST_F(C10dOverNccl, TheDoubleNoticesAReadWithoutAWait) {
  on_c10d_ranks("nccl", [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();
    const auto x = at.late(1);
    const auto work = at.sum(x);
    (void)x.cpu();
    work->wait();
  });
  expect_violation({"race"});
}

TEST_P(C10dDevice, FuturesRunTheirFunctionsInOrder) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();
    const auto x = at.late(at.rank + 1);
    const auto work = at.sum(x);
    const auto future = work->getFuture();
    EXPECT_EQ(future, work->getFuture());
    // Streams wait for it, and not the host.
    EXPECT_TRUE(future->completed() || !over_nccl());
    const auto twice = future->then(
        [](c10::ivalue::Future& done) {
          return c10::IValue(done.value().toTensorVector().at(0) * 2);
        },
        c10::TensorType::get());
    twice->wait();
    expect_is(twice->value().toTensor(), at::full({100}, 6.0F));
    expect_is(x, at::full({100}, 3.0F));
    work->wait();
  });
}

TEST_P(C10dDevice, ACallKeepsItsTensorsUntilItHasEnded) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();
    c10::weak_intrusive_ptr<c10::StorageImpl> memory = [&] {
      const auto x = at.late(1);
      at.sum(x);  // Neither the tensor nor the Work is kept.
      return x.storage().getWeakStorageImpl();
    }();
    const auto next = at.full({100}, at.rank);
    at.sum(next)->wait();
    expect_is(next, at::full({100}, 1.0F));
    while (!memory.expired()) std::this_thread::yield();
  });
}

TEST_P(C10dDevice, RefusalsNameTheDevicesAndTheGroupStaysUsable) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    const auto host = at::full({2}, 1.0F);
    const auto refuses_mixed = [&] {
      const std::vector<std::string> both{"cpu", at.device.str(), "one device"};
      Tensors inputs{at.full({2}, 1), host};
      expect_refused<c10::ValueError>(both, [&] { at.backend->allreduce_coalesced(inputs); });
      Tensors input{at.full({2}, 1)};
      std::vector<Tensors> lists{{at.full({2}, 0), host}};
      expect_refused<c10::ValueError>(both, [&] { at.backend->allgather(lists, input); });
    };
    refuses_mixed();  // Before the group on the device is made.
    const auto x = at.full({2}, at.rank);
    at.sum(x)->wait();
    expect_is(x, at::full({2}, 1.0F));
    refuses_mixed();
    const c10::Device another(c10::kCUDA, static_cast<c10::DeviceIndex>(at.rank + 2));
    expect_refused<c10::ValueError>({at.device.str(), another.str(), "one device"},
                                    [&] { at.sum(host.to(another)); });
    Tensors strided{at.full({2, 2}, 1).t()};
    expect_refused<c10::ValueError>({at.device.str(), "not contiguous"},
                                    [&] { at.backend->recv(strided, at.peer(), 0); });
    Tensors any{at.full({2}, 1)};
    expect_refused<c10::NotImplementedError>({"recv"}, [&] { at.backend->recvAnysource(any, 0); });
    at.sum(x)->wait();
    expect_is(x, at::full({2}, 2.0F));
  });
}

TEST_F(C10dOverNccl, AllRanksTakeGlooIfOneOfThemHasNoNccl) {
  on_c10d_ranks("auto", [](const C10dRank& at) {
    without_nccl = at.rank == 1;
    const auto x = at.full({2}, 1);
    at.sum(x)->wait();
    expect_is(x, at::full({2}, 2.0F));
    EXPECT_NE(c10d_door::describe(at.backend).find(at.device.str() + " gloo"), std::string::npos);
  });
}

TEST_F(C10dOverNccl, AutoTakesNccl) {
  on_c10d_ranks("auto", [](const C10dRank& at) {
    at.sum(at.full({2}, 1))->wait();
    EXPECT_NE(c10d_door::describe(at.backend).find(at.device.str() + " nccl"), std::string::npos);
  });
}

TEST_F(C10dOverNccl, ADeviceThatNoBackendServesIsRefusedOnAllRanks) {
  on_c10d_ranks("nccl", [](const C10dRank& at) {
    without_nccl = at.rank == 1;
    expect_refused<c10::NotImplementedError>({"nccl", "libnccl.so.2"},
                                             [&] { at.sum(at.full({2}, 1)); });
  });
}

TEST_P(C10dDevice, ASplitHasAGroupOnTheDeviceToo) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    const auto part = at.backend->split(nullptr, {1, 0}, at.backend->getBackendOptions());
    const auto of_part = C10dRank{part, part->getRank(), at.device};
    const auto x = at.full({2}, part->getRank());
    of_part.sum(x)->wait();
    at.sum(x)->wait();
    expect_is(x, at::full({2}, 2.0F));
    part->shutdown();
  });
}

TEST_P(C10dDevice, AnErrorNamesTheMissingRankOnAllRanks) {
  on_c10d_ranks(GetParam(), [](const C10dRank& at) {
    at.sum(at.full({1}, 1))->wait();
    const auto end = [](const C10dWork& work) {
      while (!work->isCompleted()) std::this_thread::yield();
      EXPECT_FALSE(work->isSuccess());
      work->wait();
    };
    Tensors note{at::zeros({1})};  // Of the host: its group goes on.
    if (at.rank == 1) at.backend->recv(note, 0, 0)->wait();
    Tensors x{at.full({2}, 1)};
    ::c10d::AllreduceOptions options;
    options.timeout = 200ms;
    expect_refused<c10::DistBackendError>({"missing: 1"},
                                          [&] { end(at.backend->allreduce(x, options)); });
    if (at.rank == 0) at.backend->send(note, 1, 0)->wait();
  });
}

}  // namespace
}  // namespace tutti::test
