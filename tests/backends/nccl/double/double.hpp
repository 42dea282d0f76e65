#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
// by 1/n for ncclAvg: all of it is permitted. Graphs       What is put on a stream that captures,
// or on one that waits for it, is kept and runs when the graph is launched, checked like everything
// else. Reported are streams that do not come back, events and streams that are asked or waited for
// meanwhile, what the mode of a thread prohibits, and dependencies across the edge of a capture.
// Registration Windows are collective and ncclInProgress until all ranks are there. Memory that is
// freed while a communicator knows it, and a communicator that is destroyed with such memory, are
// reported. Lifetimes    A call after ncclCommDestroy or ncclCommAbort, a group left open, a rank
// that does not abort with the others, and what is left at the end are reported.

namespace tutti::test::nccl_double {

/// The tables, for make_nccl(). They work for ever, from any thread.
backend::nccl::Apis apis();

/// The violations since the last call, as texts.
std::vector<std::string> take_violations();

/// Reports leaked communicators, streams, events, memory and open groups. Call it when no group is
/// alive. Waits briefly for detached threads of a backend. Then forgets everything, for the next
/// test.
void check_nothing_is_left();

void set_faults(int device, const Faults& faults);
/// For all devices at once.
void clear_faults();

/// Kernels that only send and receive run beside those of other communicators, and may be made
/// while those are ncclInProgress or another thread has a group of them open. NCCL does not promise
/// either: in an order that differs between devices they may hang, as others do.
void set_messages_side_by_side(bool side_by_side);

/// Ranks connect for each collective function at its first call (NCCL_RUNTIME_CONNECT), which is
/// ncclInProgress until all of them have made it; not for all functions at the first call of any.
void set_connects_each_function(bool each);

/// True if the platform has symmetric windows, and NCCL's settings allow registered buffers.
/// Otherwise registering succeeds with a null handle.
void set_registers(bool windows, bool buffers);

/// A kernel of the program: every float of `data` is `value` when it has run, which takes `takes`.
void fill(cudaStream_t stream, float* data, std::size_t count, float value,
          std::chrono::nanoseconds takes = {});
/// The same, as a kernel that copies.
void copy(cudaStream_t stream, float* to, const float* from, std::size_t count,
          std::chrono::nanoseconds takes = {});
/// cudaStreamBeginCapture() and cudaStreamEndCapture(), which the backend does not call itself. A
/// graph that breaks the rules is null. Its end frees its allocations.
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

/// The number of calls of a function so far: "ncclAllReduce".
int calls(const std::string& function);

}  // namespace tutti::test::nccl_double
