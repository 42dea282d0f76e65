#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backends/nccl/double/faults.hpp"
#include "nccl/nccl.hpp"

// A double of NCCL and of the CUDA runtime, in host memory, for machines without a GPU. It checks
// the documented rules for callers (below). A test over it shows that the backend uses NCCL
// correctly, not that NCCL works.
//
// Devices      Eight. A rank is a thread; each has the current device, the last error and the open
// group of its own. Streams      Work runs when a caller waits or polls, never inside the call that
// queued it. Accesses to device memory that no stream order, event or wait of the host puts in
// order are reported, whether or not they went wrong (a vector clock per stream). Memory       The
// host has no access to it: a read is a SIGSEGV. New and freed memory is poison. What is outside a
// block, freed or of another device is reported. Pinned memory is the host's: what a copy will
// write is poison until it has run, and the host may change neither that nor the source of a copy
// meanwhile. NCCL         Communicators are ncclInProgress for some polls, and until all ranks are
// there; work on a stream, or another call, before that is reported. Counts, types, reductions and
// roots have to match by order. A device runs one kernel at a time, in the order of the launches,
// so that an order that differs between devices is a deadlock, which is reported (messages can be
// let off). Reductions round at every hop, begin at rank 1, lose a NaN in min and max and multiply
// by 1/n for ncclAvg: all of it is permitted. A communicator of one rank copies on the caller's
// thread, and is never ncclInProgress. Graphs       What is put on a stream that captures,
// or on one that waits for it, is kept and runs when the graph is launched, checked like everything
// else. Reported are streams that do not come back, events and streams that are asked or waited for
// meanwhile, what the mode of a thread prohibits, and dependencies across the edge of a capture.
// Registration Windows are collective and ncclInProgress until all ranks are there. Memory that is
// freed while a communicator knows it, and a communicator that is destroyed with such memory, are
// reported. Lifetimes    A call after ncclCommDestroy or ncclCommAbort, a group left open, a rank
// that does not abort with the others, and what is left at the end are reported. An abort stops
// kernels at once. It and ncclCommFinalize end when no graph with calls of the communicator is left
// (commDestroySync in NCCL's init.cc). While there is one, other calls of the communicator query an
// event (enqueue.cc), which no capture in global mode permits.

namespace tutti::test::nccl_double {

/// The tables, for make_nccl(). They work for ever, from any thread.
backend::nccl::Apis apis();

/// The NCCL of apis(), as one of several copies of the library in this process: ranks of different
/// copies may share a device, where their kernels run side by side. `copy` is less than
/// device_count.
const backend::nccl::NcclApi& nccl_copy(int copy);

/// The violations since the last call, as texts.
std::vector<std::string> take_violations();

/// Reports leaked communicators, streams, events, memory and open groups. Call it when no group is
/// alive. Waits up to `patience` for detached threads of a backend. Then forgets everything, for
/// the next test.
void check_nothing_is_left(std::chrono::milliseconds patience = std::chrono::seconds(1));

void set_faults(int device, const Faults& faults);
/// For all devices at once.
void clear_faults();

/// Kernels that only send and receive run beside those of other communicators, which NCCL does not
/// promise: in an order that differs between devices they may hang, as others do. They may be made
/// while those are ncclInProgress only if one of the two waits for its peers: the first operation
/// of a communicator, or one that has been ncclInProgress for 2 ms.
void set_messages_side_by_side(bool side_by_side);

/// Ranks connect for each collective function at its first call (NCCL_RUNTIME_CONNECT), which is
/// ncclInProgress until all of them have made it; not for all functions at the first call of any.
void set_connects_each_function(bool each);

/// True if the platform has symmetric windows, and NCCL's settings allow registered buffers.
/// Otherwise registering succeeds with a null handle; a window before NCCL 2.29.2 with the handle
/// of a buffer.
void set_registers(bool windows, bool buffers);

/// The version of NCCL: 22304. From 2.28 until 2.30.7 collectives between windows read their input
/// when the call is put on its stream, not when the work before it has ended. Before 2.31.2 they
/// read at the offset in the window from the beginning of its allocation. Before 2.24 its kernels
/// read and write memory of a peer within the process, which memory of cudaMallocAsync does not
/// permit, unless NCCL_P2P_DIRECT_DISABLE=1.
void set_version(int version);

/// A thread of NCCL puts each group of calls on its streams, as for non-blocking communicators.
/// Otherwise the thread that polls does, which is faster.
void set_issues_on_a_thread(bool own);

/// A kernel of the program: every float of `data` is `value` when it has run, which takes `takes`.
void fill(cudaStream_t stream, float* data, std::size_t count, float value,
          std::chrono::nanoseconds takes = {});
/// The same, as a kernel that copies.
void copy(cudaStream_t stream, float* to, const float* from, std::size_t count,
          std::chrono::nanoseconds takes = {});
/// cudaStreamBeginCapture() and cudaStreamEndCapture() of the program. A graph that breaks the
/// rules is null. Its end frees its allocations.
struct Capture;
using Graph = std::shared_ptr<Capture>;
cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(cudaStream_t stream, Graph* graph);
/// cudaGraphLaunch().
void launch(const Graph& graph, cudaStream_t stream);

/// The devices on which the process has made a context since the last call of this function: they
/// were made current, or were current in a call of the runtime.
std::set<int> take_devices_in_use();

/// The bytes of pinned memory.
std::size_t pinned_bytes();

/// The blocks of a device's pool that the last cudaMemPoolTrimTo found in use: those that are not
/// freed, or whose release the host has not seen.
int kept_by_trim(int device);

/// The number of calls of a function so far: "ncclAllReduce".
int calls(const std::string& function);
/// The functions that this thread calls in `body`, in order.
std::vector<std::string> calls_in(const std::function<void()>& body);

}  // namespace tutti::test::nccl_double
