#include <optional>
#include <utility>

#include <tutti/coalesce.hpp>

#include "backends/nccl/groups.hpp"

// Memory registered with NCCL: the calls, the time of deregistration, and failures.

namespace tutti::test::nccl_double {
namespace {

/// Floats of one of a group's two memories, released on the rank's stream.
class Block {
 public:
  Block(const Member& at, Memory& memory, std::int64_t count = Member::count)
      : view(memory.allocate(sizeof(float) * static_cast<std::size_t>(count), at.stream()),
             DType::f32, Shape{count}, memory.device()),
        memory_(memory),
        stream_(at.stream()) {}
  ~Block() { memory_.release(view.data, view.bytes(), stream_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  TensorView view;

 private:
  Memory& memory_;
  Stream stream_;
};

void expect_sum(const Member& at, const TensorView& data) {
  at.fill(data, static_cast<float>(at.rank + 1));
  at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
  const int size = at.group.size();
  EXPECT_TRUE(at.holds(data, static_cast<float>(size * (size + 1) / 2)));
}

RegistrationKind kind_of(const Member& at, Memory& memory) {
  const Block block(at, memory);
  const Registration registered = at.group.register_memory(block.view, {.stream = at.stream()});
  expect_sum(at, block.view);
  return registered.kind();
}

class NcclRegistration : public Double {};

TEST_F(NcclRegistration, MemoryOfNcclBecomesAWindow) {
  const int before = calls("ncclCommWindowDeregister");
  on_groups(3, [](const Member& at) {
    EXPECT_EQ(kind_of(at, at.group.registrable_memory()), RegistrationKind::window);
  });
  EXPECT_EQ(calls("ncclCommWindowDeregister"), before + 3);
}

TEST_F(NcclRegistration, OtherMemoryIsABufferAndNotAWindow) {
  const int windows = calls("ncclCommWindowRegister");
  const int before = calls("ncclCommDeregister");
  on_groups(2, [](const Member& at) {
    EXPECT_EQ(kind_of(at, at.group.memory()), RegistrationKind::buffer);
  });
  EXPECT_EQ(calls("ncclCommWindowRegister"), windows);
  EXPECT_EQ(calls("ncclCommDeregister"), before + 2);
}

TEST_F(NcclRegistration, WhatIsNoWindowOnOneRankIsNoneOnAny) {
  on_groups(2, [](const Member& at) {
    Memory& memory = at.rank == 0 ? at.group.registrable_memory() : at.group.memory();
    EXPECT_EQ(kind_of(at, memory), RegistrationKind::buffer);
  });
}

TEST_F(NcclRegistration, APartThatBeginsWithinAPageIsABuffer) {
  on_groups(2, [](const Member& at) {
    const Block block(at, at.group.registrable_memory());
    TensorView part = block.view;
    part.data = static_cast<float*>(part.data) + 1;
    part.shape = Shape{Member::count - 1};
    EXPECT_EQ(at.group.register_memory(part).kind(), RegistrationKind::buffer);
  });
}

TEST_F(NcclRegistration, WhatNcclDoesNotWantIsOfNoKind) {
  set_registers(false, false);
  const int before = calls("ncclCommDeregister");
  on_groups(2, [](const Member& at) {
    EXPECT_EQ(kind_of(at, at.group.registrable_memory()), RegistrationKind::none);
  });
  EXPECT_EQ(calls("ncclCommDeregister"), before);
}

TEST_F(NcclRegistration, AWindowThatMayBeNoneIsNotMade) {
  set_version(22809);
  set_registers(false, true);  // NCCL would return a handle.
  on_groups(2, [](const Member& at) {
    EXPECT_EQ(kind_of(at, at.group.registrable_memory()), RegistrationKind::buffer);
  });
}

TEST_F(NcclRegistration, AnOldLibraryIsNamed) {
  set_version(21805);
  on_groups(1, [](const Member& at) {
    EXPECT_EQ(&at.group.registrable_memory(), &at.group.memory());
    const Block block(at, at.group.memory());
    expect_error(Errc::unsupported, {"2.19", "2.18.5"},
                 [&] { (void)at.group.register_memory(block.view); });
    expect_sum(at, block.view);
  });
}

TEST_F(NcclRegistration, BeforeWindowsThereAreBuffers) {
  set_version(21903);
  on_groups(1, [](const Member& at) {
    EXPECT_NE(&at.group.registrable_memory(), &at.group.memory());
    EXPECT_EQ(kind_of(at, at.group.registrable_memory()), RegistrationKind::buffer);
  });
}

TEST_F(NcclRegistration, WindowsAreThereFromTheirVersionOn) {
  for (const auto& [version, kind] :
       {std::pair(23004, RegistrationKind::buffer), std::pair(23007, RegistrationKind::window)}) {
    set_version(version);
    on_groups(2, [kind = kind](const Member& at) {
      EXPECT_EQ(kind_of(at, at.group.registrable_memory()), kind);
    });
  }
}

TEST_F(NcclRegistration, ABlockHasOneWindowBeforeTheVersionOfSeveral) {
  for (const auto& [version, more] :
       {std::pair(23007, RegistrationKind::buffer), std::pair(23102, RegistrationKind::window)}) {
    set_version(version);
    on_groups(2, [more = more](const Member& at) {
      const Block block(at, at.group.registrable_memory(), 2048);  // Two pages.
      TensorView half = block.view;
      half.shape = Shape{1024};
      TensorView other = half;
      other.data = static_cast<float*>(half.data) + 1024;
      std::optional<Registration> first = at.group.register_memory(half);
      EXPECT_EQ(first->kind(), RegistrationKind::window);
      EXPECT_EQ(at.group.register_memory(block.view).kind(), more);
      EXPECT_EQ(at.group.register_memory(other).kind(), more);
      expect_sum(at, half);
      first.reset();
      EXPECT_EQ(at.group.register_memory(block.view).kind(), RegistrationKind::window);
    });
  }
}

TEST_F(NcclRegistration, ItsEndWaitsForTheCallsUnderWay) {
  on_groups(2, [](const Member& at) {
    const Block block(at, at.group.registrable_memory());
    std::optional<Registration> registered = at.group.register_memory(block.view);
    at.fill(block.view, 1, slow);
    Work work = at.group.all_reduce_async(block.view, ReduceOp::sum, {.stream = at.stream()});
    registered.reset();  // The double reports a kernel that still uses it.
    work.wait();
  });
}

TEST_F(NcclRegistration, AGroupThatEndsForgetsItsBlocks) {
  const auto store = make_memory_store();
  const int before = calls("ncclCommWindowDeregister");
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    std::optional<ProcessGroup> group = make_group(rank, 2, store, {});
    Memory& memory = group->registrable_memory();
    void* data = memory.allocate(400, {});
    Registration registered = group->register_memory({data, DType::f32, {100}, memory.device()});
    group.reset();
    memory.release(data, 400, {});  // The double reports memory that is still registered.
    EXPECT_EQ(registered.kind(), RegistrationKind::window);
  });
  EXPECT_EQ(calls("ncclCommWindowDeregister"), before + 2);
}

TEST_F(NcclRegistration, AfterAnAbortItsEndWaitsForTheCommunicator) {
  on_groups(2, [](const Member& at) {
    std::optional<Block> block(std::in_place, at, at.group.registrable_memory());
    std::optional<Registration> registered = at.group.register_memory(block->view);
    at.group.abort("the test");
    registered.reset();
    block.reset();  // The double reports memory that is still registered.
  });
}

TEST_F(NcclRegistration, ACapturingStreamIsRefusedOnAllRanks) {
  on_groups(2, [](const Member& at) {
    const Block block(at, at.group.registrable_memory());
    Graph graph;
    if (at.rank == 1) begin_capture(at.compute, cudaStreamCaptureModeThreadLocal);
    if (at.rank == 1)
      expect_error(Errc::unsupported, {"captured"},
                   [&] { (void)at.group.register_memory(block.view, {.stream = at.stream()}); });
    else
      expect_error(Errc::mismatch, {"rank 1 refused register_memory", "captured"},
                   [&] { (void)at.group.register_memory(block.view, {.stream = at.stream()}); });
    if (at.rank == 1) end_capture(at.compute, &graph);
    expect_sum(at, block.view);
  });
}

TEST_F(NcclRegistration, AFailureOfOneRankIsHeardByAll) {
  const int before = calls("ncclCommWindowDeregister");
  on_groups(3, [](const Member& at) {
    const Block block(at, at.group.registrable_memory());
    const Block other(at, at.group.registrable_memory());
    const Registration registered = at.group.register_memory(other.view);
    at.group.barrier();
    if (at.rank == 1) set_faults(1, {.fails = "ncclCommWindowRegister"});
    expect_error({Errc::backend, Errc::aborted},
                 {"ncclCommWindowRegister", "register_memory of 400"},
                 [&] { (void)at.group.register_memory(block.view); });
    expect_error(Errc::aborted, {"ncclCommWindowRegister"}, [&] { at.group.barrier(); });
  });
  EXPECT_EQ(calls("ncclCommWindowDeregister"), before);  // The abort has ended the communicator.
}

TEST_F(NcclRegistration, OneThatDoesNotEndEndsByTheDeadline) {
  on_groups(2,
            [](const Member& at) {
              const Block block(at, at.group.registrable_memory());
              at.group.barrier();
              set_faults(at.rank, {.stays_in_progress = true});
              expect_error({Errc::timeout, Errc::aborted},
                           {"register_memory of 400 bytes", "deadline"},
                           [&] { (void)at.group.register_memory(block.view); });
            },
            {.timeout = 2s});
}

}  // namespace
}  // namespace tutti::test::nccl_double
