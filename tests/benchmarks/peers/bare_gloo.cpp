#include "bare_gloo.hpp"

#include <chrono>
#include <memory>
#include <utility>

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace tutti::peers {
namespace {

void add(void* out, const void* a, const void* b, std::size_t count) {
  ::gloo::sum<float>(out, a, b, count);
}

/// Debian's snapshot takes the store by reference, later versions take a shared pointer.
template <typename Context, typename Store, typename Device>
void connect(Context& context, const std::shared_ptr<Store>& store, Device& device) {
  if constexpr (requires { context.connectFullMesh(store, device); })
    context.connectFullMesh(store, device);
  else
    context.connectFullMesh(*store, device);
}

}  // namespace

Bare::Bare(int rank, int size, const std::string& directory) {
  auto device = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr("127.0.0.1"));
  auto context = std::make_shared<::gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::minutes(1));
  connect(*context, std::make_shared<::gloo::rendezvous::FileStore>(directory), device);
  context_ = std::move(context);
}

void Bare::all_reduce(std::span<float> data, Algorithm algorithm) {
  ::gloo::AllreduceOptions options(context_);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(add);
  options.setAlgorithm(algorithm);
  ::gloo::allreduce(options);
}

void Bare::reduce(std::span<float> in, std::span<float> out, int root) {
  ::gloo::ReduceOptions options(context_);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), out.size());
  options.setReduceFunction(add);
  options.setRoot(root);
  ::gloo::reduce(options);
}

void Bare::broadcast(std::span<float> data, int root) {
  ::gloo::BroadcastOptions options(context_);
  options.setOutput(data.data(), data.size());
  options.setRoot(root);
  ::gloo::broadcast(options);
}

void Bare::all_gather(std::span<float> in, std::span<float> out) {
  ::gloo::AllgatherOptions options(context_);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), out.size());
  ::gloo::allgather(options);
}

void Bare::all_gather_rows(std::span<float> in, std::span<float> out,
                           std::vector<std::size_t> rows) {
  ::gloo::AllgathervOptions options(context_);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), std::move(rows));
  ::gloo::allgatherv(options);
}

void Bare::barrier() {
  ::gloo::BarrierOptions options(context_);
  ::gloo::barrier(options);
}

}  // namespace tutti::peers
