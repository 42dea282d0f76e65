// Trains LightGBM's models on several processes, over a process group and over LightGBM's own
// sockets, and compares the models.
//
// usage: lightgbm [--backend NAME] [--iterations N] [--verbose] TASK...

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/tutti.hpp>

#include "library.hpp"
#include "network.hpp"

namespace {

struct Task {
  std::string name;
  std::string parameters;
  const char* metric;
};
const Task tasks[] = {
    {"binary", "objective=binary metric=auc", "AUC"},
    {"multiclass", "objective=multiclass num_class=4 metric=multi_error", "error"},
    {"lambdarank", "objective=lambdarank metric=ndcg eval_at=5", "NDCG@5"},
};

/// One rank's rows. Rows come in queries of 5 to 24, of which a rank has whole ones.
struct Data {
  static constexpr int columns = 20, queries = 1001, category = 3;
  std::vector<double> features{};  // [rows, columns]
  std::vector<float> labels{};
  std::vector<float> weights{};  // So uneven that sums round, and depend on their order.
  std::vector<std::int32_t> query_rows{};
};

Data make_data(const Task& task, int rank, int size) {
  Data data;
  for (int query = Data::queries * rank / size; query < Data::queries * (rank + 1) / size;
       ++query) {
    std::mt19937_64 bits(static_cast<std::uint64_t>(query) * 31 + task.name.size());
    const auto uniform = [&] { return static_cast<double>(bits() >> 11) * 0x1p-53; };
    data.query_rows.push_back(5 + static_cast<int>(20 * uniform()));
    for (int row = 0; row < data.query_rows.back(); ++row) {
      double x[Data::columns];
      for (double& value : x) value = uniform();
      x[Data::category] = std::floor(30 * x[Data::category]);
      const bool third = static_cast<int>(x[Data::category]) % 3 == 1;
      const double score = 2 * x[0] * x[1] + std::abs(x[2] - 0.5) + third + 1.5 * uniform();
      const double grade = std::min(3.0, std::floor(score));
      data.labels.push_back(static_cast<float>(task.name == "binary" ? grade > 1 : grade));
      data.weights.push_back(static_cast<float>(std::exp2(-40 * uniform())));
      data.features.insert(data.features.end(), std::begin(x), std::end(x));
    }
  }
  return data;
}

struct Training {
  std::string model;
  double metric;   // Of this rank's rows.
  double seconds;  // With its communication.
};

Training train(const LightGbm& lgbm, const Task& task, const Data& data, int size, int iterations,
               bool verbose) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string parameters =
      task.parameters +
      " tree_learner=data pre_partition=true num_threads=1 verbosity=1 num_machines=" +
      std::to_string(size) + " categorical_feature=" + std::to_string(Data::category);
  using Handle = std::unique_ptr<void, int (*)(void*)>;
  void* made = nullptr;
  const int rows = static_cast<int>(data.labels.size());
  lgbm.check(lgbm.dataset(data.features.data(), LightGbm::f64, rows, Data::columns, 1,
                          parameters.c_str(), nullptr, &made));
  const Handle dataset(made, lgbm.dataset_free);
  lgbm.check(lgbm.dataset_field(made, "label", data.labels.data(), rows, LightGbm::f32));
  lgbm.check(lgbm.dataset_field(made, "weight", data.weights.data(), rows, LightGbm::f32));
  if (task.name == "lambdarank") {
    lgbm.check(lgbm.dataset_field(made, "group", data.query_rows.data(),
                                  static_cast<int>(data.query_rows.size()), LightGbm::i32));
  }
  lgbm.check(lgbm.booster(dataset.get(), parameters.c_str(), &made));
  const Handle booster(made, lgbm.booster_free);
  double metric = 0;
  for (int i = 1, finished = 0, count = 0; i <= iterations && finished == 0; ++i) {
    lgbm.check(lgbm.booster_iterate(booster.get(), &finished));
    lgbm.check(lgbm.booster_metrics(booster.get(), 0, &count, &metric));
    if (verbose) std::printf("iteration %d: %s %.4f\n", i, task.metric, metric);
    std::fflush(stdout);
  }
  std::int64_t bytes = 0;
  lgbm.check(lgbm.booster_text(booster.get(), 0, -1, 0, 0, &bytes, nullptr));
  std::string model(static_cast<std::size_t>(bytes), '\0');
  lgbm.check(lgbm.booster_text(booster.get(), 0, -1, 0, bytes, &bytes, model.data()));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return {model, metric, took.count()};
}

/// Connects LightGBM's own sockets on loopback. Every rank takes a free port, below those that the
/// system gives to outgoing connections, and holds it until all ranks have theirs.
void connect_sockets(const LightGbm& lgbm, tutti::ProcessGroup& group) {
  const int holder = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  int port = 20000 + ::getpid() % 10000;
  do {
    if (++port > 32000) throw std::runtime_error("no free port");
    address.sin_port = htons(static_cast<std::uint16_t>(port));
  } while (::bind(holder, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0);
  std::vector<int> ports(static_cast<std::size_t>(group.size()));
  group.all_gather(std::span(&port, 1), ports);
  ::close(holder);
  std::string machines;
  for (const int of_rank : ports) machines += "127.0.0.1:" + std::to_string(of_rank) + ",";
  lgbm.check(lgbm.network_sockets(machines.c_str(), port, 1, group.size()));
}

double seconds_of_sockets = 0;

void on_log(const char* text) {
  std::sscanf(text, "Finished linking network in %lf", &seconds_of_sockets);
}

/// Returns whether all ranks have the same models, and LightGBM's sockets give these, too.
bool run(const LightGbm& lgbm, const std::vector<Task>& chosen, tutti::ProcessGroup& group,
         int iterations, bool verbose) {
  const int rank = group.rank();
  const int size = group.size();
  std::vector<Data> data;
  std::vector<Training> ours, theirs;
  network::state = {.group = &group};
  lgbm.check(lgbm.network_functions(size, rank, reinterpret_cast<void*>(network::reduce_scatter),
                                    reinterpret_cast<void*>(network::all_gather)));
  for (const auto& task : chosen) {
    data.push_back(make_data(task, rank, size));
    ours.push_back(train(lgbm, task, data.back(), size, iterations, verbose));
  }
  lgbm.check(lgbm.network_free());
  if (size > 1) connect_sockets(lgbm, group);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    theirs.push_back(train(lgbm, chosen[i], data[i], size, iterations, false));
  }
  lgbm.check(lgbm.network_free());

  bool right = true;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::uint64_t hash = std::hash<std::string>()(ours[i].model);
    std::uint64_t of_rank_0 = hash;
    group.broadcast(std::span(&of_rank_0, 1), 0);
    const bool same = group.all_reduce(hash == of_rank_0, tutti::ReduceOp::min);
    const bool equal = group.all_reduce(ours[i].model == theirs[i].model, tutti::ReduceOp::min);
    right = right && same && equal;
    if (rank != 0) continue;
    const char* const second =
        size > 1 ? "that of LightGBM's sockets" : "that of a second training";
    std::printf("%s: %s %.2f, %s, %s %s\n", chosen[i].name.c_str(), chosen[i].metric,
                ours[i].metric, same ? "one model on all ranks" : "THE RANKS' MODELS DIFFER",
                equal ? "equal to" : "NOT", second);
    if (verbose) {
      std::printf("%s: model of %zu bytes, hash %016llx; %.4f s over tutti, %.4f s over sockets\n",
                  chosen[i].name.c_str(), ours[i].model.size(),
                  static_cast<unsigned long long>(hash), ours[i].seconds, theirs[i].seconds);
    }
  }
  if (verbose && rank == 0) {
    std::printf("communication: %.4f s in %lld calls over tutti, %.4f s over sockets\n",
                network::state.seconds.count(), static_cast<long long>(network::state.calls),
                seconds_of_sockets);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string backend = "auto";
  int iterations = 10;
  bool verbose = false;
  std::vector<Task> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto* const task = std::ranges::find(tasks, word, &Task::name);
    if (task != std::end(tasks)) {
      chosen.push_back(*task);
    } else if (word == "--verbose") {
      verbose = true;
    } else if (word == "--backend" && i + 1 < argc) {
      backend = argv[++i];
    } else if (word == "--iterations" && i + 1 < argc) {
      iterations = std::atoi(argv[++i]);
    } else {
      throw std::runtime_error("unknown argument " + std::string(word));
    }
  }
  const auto path = path_of_lightgbm();
  if (path.empty()) {
    std::fputs("skipped: python3 has no package lightgbm, and LIGHTGBM_LIBRARY is not set\n",
               stderr);
    return 77;
  }
  const LightGbm lgbm(path);
  lgbm.check(lgbm.log_to(on_log));
  auto group = tutti::init({.group = {.backend = backend}});
  return run(lgbm, chosen, group, iterations, verbose) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
