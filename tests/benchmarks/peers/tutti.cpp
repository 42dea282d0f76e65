// This library as a contestant of contest.py.
// usage: peer_tutti BACKEND DIRECTORY SIZE [RANK] [--memory] [--order-fixed]
// Without RANK all ranks are threads of this process. --memory: arrays in the group's memory.
// --order-fixed: reductions in rank order.

#include <tutti/training.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

#include "contestant.hpp"

namespace tutti::peers {
namespace {

/// A step of data-parallel training without its computation: the gradients are there, and arrive
/// from the last parameter to the first, as in backward. With `views` they are in the buckets, and
/// their first values and results are copied from and to `arrays`.
Call make_step(ProcessGroup& group, const Request& request, Arrays arrays, bool views) {
  std::vector<ddp::Parameter> parameters;
  std::vector<TensorView> gradients;
  std::size_t next = 0;
  for (const auto count : request.counts) {
    gradients.emplace_back(arrays.in.subspan(next, count));
    parameters.push_back({std::to_string(parameters.size()),
                          TensorView(nullptr, DType::f32, gradients.back().shape)});
    next += count;
  }
  auto reducer = std::make_shared<ddp::GradientReducer>(
      group, std::move(parameters), ddp::ReducerOptions{.gradient_as_bucket_view = views});
  const auto step = [reducer, gradients, views] {
    for (auto id = gradients.size(); id-- > 0;)
      reducer->mark_ready(id, views ? reducer->gradient(id) : gradients[id]);
    reducer->finish();
  };
  if (!views) return [step](int) { step(); };
  const auto copy_all = [reducer, gradients](bool into_buckets) {
    for (std::size_t id = 0; id < gradients.size(); ++id) {
      const auto place = reducer->gradient(id);
      std::memcpy(into_buckets ? place.data : gradients[id].data,
                  into_buckets ? gradients[id].data : place.data, place.bytes());
    }
  };
  return [=, first = true](int) mutable {
    if (first) copy_all(true);
    step();
    if (std::exchange(first, false)) copy_all(false);
  };
}

Call make(ProcessGroup& group, const Request& request, Arrays arrays, bool order_fixed) {
  const auto& operation = request.operation;
  const auto in = arrays.in;
  const auto out = arrays.out;
  const int size = group.size();
  if (operation == "barrier") return [&group](int) { group.barrier(); };
  if (operation == "all_reduce")
    return [=, &group](int) { group.all_reduce(in, ReduceOp::sum, {.order_fixed = order_fixed}); };
  if (operation == "broadcast") return [=, &group](int call) { group.broadcast(in, call % size); };
  if (operation == "reduce")
    return [=, &group](int call) {
      group.reduce(in, out, call % size, ReduceOp::sum, {.order_fixed = order_fixed});
    };
  if (operation == "all_gather") return [=, &group](int) { group.all_gather(in, out); };
  if (operation == "all_gather_rows") {
    const std::vector<std::int64_t> rows(request.counts.begin(), request.counts.end());
    return [=, &group](int) { group.all_gather(in, out, std::span(rows)); };
  }
  if (operation == "step") return make_step(group, request, arrays, false);
  if (operation == "step_views") return make_step(group, request, arrays, true);
  return {};
}

int run(ProcessGroup group, const std::string& directory, bool memory, bool order_fixed) {
  std::vector<Tensor> tensors;  // The arrays of the last request: `in`, `out`.
  const auto allocate = [&](std::size_t count) {
    if (tensors.size() == 2) tensors.clear();
    return tensors
        .emplace_back(group.registrable_memory(), Shape::vector(static_cast<std::int64_t>(count)),
                      DType::f32)
        .values<float>();
  };
  return serve(
      directory,
      {.rank = group.rank(),
       .size = group.size(),
       .version = group.transport(),
       .make = [&](const auto& request,
                   auto arrays) { return make(group, request, arrays, order_fixed); },
       .allocate = memory ? std::function<std::span<float>(std::size_t)>(allocate) : nullptr});
}

GroupOptions options(const std::string& backend, std::shared_ptr<Store> store, int rank, int size) {
  return {.backend = backend,
          .store = std::move(store),
          .rank = rank,
          .size = size,
          .timeout = std::chrono::minutes(1)};
}

}  // namespace
}  // namespace tutti::peers

int main(int count, char** words) try {
  using namespace tutti;
  using namespace tutti::peers;
  std::vector<std::string> arguments(words + 1, words + count);
  const bool memory = std::erase(arguments, "--memory") != 0;
  const bool order_fixed = std::erase(arguments, "--order-fixed") != 0;
  if (arguments.size() != 3 && arguments.size() != 4) return 2;
  const auto& backend = arguments[0];
  const auto& directory = arguments[1];
  const int size = std::stoi(arguments[2]);
  if (arguments.size() == 4) {
    const auto path = directory + "/store";
    std::filesystem::create_directories(path);
    return run(ProcessGroup::create(
                   options(backend, make_file_store(path), std::stoi(arguments[3]), size)),
               directory, memory, order_fixed);
  }
  const auto store = make_memory_store();
  std::vector<GroupOptions> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(options(backend, store, rank, size));
  auto groups = ProcessGroup::create_all(all);
  std::vector<std::jthread> ranks;
  for (auto& group : groups)
    ranks.emplace_back([&] { run(std::move(group), directory, memory, order_fixed); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "peer_tutti: %s\n", error.what());
  return 1;
}
