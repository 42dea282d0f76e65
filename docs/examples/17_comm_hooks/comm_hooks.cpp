// Trains the same network with each hook. Prints how much a rank sends, and the final loss.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/training.hpp>

#include "../15_ddp_mlp/mlp.hpp"
#include "gossip.hpp"
#include "top_k.hpp"

namespace {

namespace ddp = tutti::ddp;

constexpr int ranks = 4;
constexpr int steps = 400;
constexpr double rate = 0.2;
// Local SGD begins after some steps, and then averages the parameters periodically.
constexpr int local_from = 100;
constexpr int period = 8;

/// Counts the bytes that this rank sends in a group, from the group's trace.
class SentBytes {
 public:
  explicit SentBytes(const tutti::ProcessGroup& group) : group_(group) { count(); }

  /// Call it at least once per 64 collectives and 64 messages, of which the trace has the last.
  void count() {
    const double size = group_.size();
    for (const tutti::TraceEntry& call : group_.trace()) {
      // Messages are numbered by peer.
      const bool is_message = tutti::is_point_to_point(call.operation);
      std::uint64_t& next = next_[is_message ? call.peer : -1];
      if (call.seq < next) continue;
      next = call.seq + 1;
      const auto bytes = static_cast<double>(call.bytes);
      // A ring sends each element once to sum it, and once to distribute the sum.
      if (call.operation == tutti::Operation::all_reduce) sent_ += 2 * bytes * (size - 1) / size;
      if (call.operation == tutti::Operation::all_gather) sent_ += bytes * (size - 1);
      if (call.operation == tutti::Operation::send) sent_ += bytes;
    }
  }
  double sent() const { return sent_; }

 private:
  const tutti::ProcessGroup& group_;
  std::map<int, std::uint64_t> next_;
  double sent_ = 0;
};

struct Case {
  std::string name;
  /// Makes the hook, with state of its own, on each rank.
  std::function<ddp::CommHook(tutti::ProcessGroup& pair)> make;
  bool averages = false;  // The parameters, periodically.
  bool wraps = true;
};

struct Result {
  double bytes = 0;  // Sent by rank 0 per step.
  double loss = 0;   // Over all rows, after the last step.
};

Result train(tutti::ProcessGroup& group, const Case& c, bool in_fp16) {
  const auto data = mlp::make_spirals();
  mlp::Network<float> network({2, 64, 64, 1}, 7);
  auto pair = group.split(group.rank() / 2);  // Of two ranks; outlives the hook.
  ddp::GradientReducer reducer(group, network.parameters());
  const ddp::CommHook hook = c.make(*pair);
  reducer.set_hook(in_fp16 ? ddp::fp16_compress_wrapper(hook) : hook);
  ddp::PeriodicModelAverager averager(group, period, local_from);
  std::vector<tutti::TensorView> values;
  for (std::size_t id = 0; id < network.parameter_count(); ++id)
    values.push_back(network.value(id));

  SentBytes in_group(group);
  SentBytes in_pair(*pair);
  for (int step = 0; step < steps; ++step) {
    const auto mine = mlp::part_of_batch(data, step, group);
    network.backward(mine, static_cast<double>(ranks) / mlp::rows_of_batch,
                     [&](std::size_t id) { reducer.mark_ready(id, network.gradient(id)); });
    reducer.finish();
    network.update(rate);
    if (c.averages) averager.average(values);
    in_group.count();
    in_pair.count();
  }
  return {(in_group.sent() + in_pair.sent()) / steps, network.loss(data)};
}

Result on_all_ranks(const Case& c, bool in_fp16 = false) {
  const auto store = tutti::make_memory_store();
  Result result;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = ranks});
      const Result mine = train(group, c, in_fp16);
      if (rank == 0) result = mine;
    });
  threads.clear();
  return result;
}

ddp::CommHook power_sgd(int rank, bool error_feedback = true) {
  return ddp::power_sgd_hook(std::make_shared<ddp::PowerSgdState>(
      ddp::PowerSgdOptions{.rank = rank, .start_step = 0, .error_feedback = error_feedback}));
}

ddp::CommHook batched_power_sgd(int rank) {
  return ddp::batched_power_sgd_hook(
      std::make_shared<ddp::PowerSgdState>(ddp::PowerSgdOptions{.rank = rank, .start_step = 0}));
}

ddp::CommHook local_sgd(tutti::ProcessGroup& pair) {
  return ddp::post_local_sgd_hook(std::make_shared<ddp::PostLocalSgdState>(local_from, &pair));
}

}  // namespace

int main() {
  const Case uncompressed{"all_reduce", [](auto&) { return ddp::all_reduce_hook; }};
  const Case rank_4{"PowerSGD, rank 4", [](auto&) { return power_sgd(4); }};
  std::map<std::string, Result> results;
  std::printf(
      "| hook                          | bytes/step | of f32    |    loss | fp16 bytes |    loss "
      "|\n");
  std::printf(
      "|-------------------------------|-----------:|----------:|--------:|-----------:|--------:|"
      "\n");
  for (const Case& c : {
           uncompressed,
           Case{"fp16", [](auto&) { return ddp::fp16_compress_hook(); }},
           Case{"bf16", [](auto&) { return ddp::bf16_compress_hook(); }},
           rank_4,
           Case{"PowerSGD, rank 1", [](auto&) { return power_sgd(1); }},
           Case{"PowerSGD, rank 1, no feedback", [](auto&) { return power_sgd(1, false); }},
           Case{"batched PowerSGD, rank 4", [](auto&) { return batched_power_sgd(4); }},
           Case{"top-k, 1 %", [](auto&) { return TopK(0.01); }, false, false},
           Case{"gossip", [](auto&) { return Gossip(rate); }, false, false},
           Case{"local SGD", local_sgd, true},
           Case{"noop", [](auto&) { return ddp::noop_hook; }},
       }) {
    const Result& result = results[c.name] = on_all_ranks(c);
    std::printf("| %-29s | %10.0f | %7.1f %% | %7.5f |", c.name.c_str(), result.bytes,
                100 * result.bytes / results[uncompressed.name].bytes, result.loss);
    if (c.wraps) {
      const Result wrapped = on_all_ranks(c, true);
      std::printf(" %10.0f | %7.5f |\n", wrapped.bytes, wrapped.loss);
    } else {
      std::printf(" %10s | %7s |\n", "-", "-");
    }
  }
  const bool close = results[rank_4.name].loss < 1.02 * results[uncompressed.name].loss;
  std::printf("\nPowerSGD of rank 4 %s the loss of all_reduce within 2 %%\n",
              close ? "reaches" : "does not reach");
  return close ? 0 : 1;
}
