// Trains in batches with few positives: with cross-entropy first, then with Smooth-AP over a queue.
// Stops halfway, and continues from a checkpoint with another number of ranks.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/warm_up.hpp>
#include <tutti/training.hpp>

namespace {

using tutti::losses::WarmUp;
using Weights = std::array<double, 3>;

struct Rows {
  std::vector<Weights> x;
  std::vector<std::int64_t> fraud;
};

/// Returns payments, of which 3 % are fraud. Frauds have higher values in two of three features.
Rows make_payments() {
  Rows rows;
  std::mt19937 bits(1);
  const auto noise = [&] {  // Roughly normal, and the same with every standard library.
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296;
    return sum;
  };
  for (int i = 0; i < 3000; ++i) {
    const bool fraud = i % 33 == 7;
    rows.x.push_back({noise() + (fraud ? 2 : 0), noise() + (fraud ? 1 : 0), noise()});
    rows.fraud.push_back(fraud);
  }
  return rows;
}

double score(const Weights& x, const Weights& weights) {
  return x[0] * weights[0] + x[1] * weights[1] + x[2] * weights[2];
}

/// Returns the exact average precision over all payments: the mean over frauds of the precision at
/// their rank.
double average_precision(const Rows& rows, const Weights& weights) {
  std::vector<std::pair<double, bool>> order;
  for (std::size_t i = 0; i < rows.x.size(); ++i)
    order.emplace_back(score(rows.x[i], weights), rows.fraud[i] != 0);
  std::ranges::sort(order, std::greater());
  double found = 0, sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i].second) sum += ++found / static_cast<double>(i + 1);
  return sum / found;
}

/// Returns this rank's part of the 24 payments of a step.
Rows batch_of(const Rows& all, std::int64_t step, const tutti::ProcessGroup& group) {
  std::mt19937 bits(static_cast<unsigned>(step));
  Rows part;
  for (int i = 0; i < 24; ++i) {
    const std::size_t row = bits() % all.x.size();
    if (i * group.size() / 24 != group.rank()) continue;
    part.x.push_back(all.x[row]);
    part.fraud.push_back(all.fraud[row]);
  }
  return part;
}

// The state of a training.
struct Training {
  Weights weights{-1, 0, 1};
  WarmUp loss{tutti::losses::CrossEntropy({.pos_weight = 8}),
              std::make_unique<tutti::losses::SmoothAp>(
                  tutti::losses::SmoothApOptions{.pool = {.queue = 480}}),
              {.warmup_steps = 60,
               .blend_steps = 20,
               .temp_start = 0.5,
               .temp_end = 0.1,
               .temp_decay_steps = 200}};
};

/// Rank 0 writes for all ranks, because save() returns the same bytes on each.
void write(const std::string& file, const Training& training, tutti::ProcessGroup& group) {
  const std::string state = training.loss.save(group);
  if (group.rank() != 0) return;
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(training.weights.data()), sizeof(Weights));
  out.write(state.data(), static_cast<std::streamsize>(state.size()));
}

void read(const std::string& file, Training& training, tutti::ProcessGroup& group, bool with_loss) {
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(training.weights.data()), sizeof(Weights));
  const std::string state{std::istreambuf_iterator<char>(in), {}};
  if (with_loss) training.loss.load(group, state);
}

struct Line {
  std::string phase;
  double temperature, loss, precision;
  std::int64_t queued;
};
using Lines = std::vector<Line>;

/// Runs steps [first, last) on one rank.
Lines train(tutti::ProcessGroup& group, Training& training, std::int64_t first, std::int64_t last) {
  const Rows all = make_payments();
  auto& [weights, loss] = training;
  Lines lines;
  for (std::int64_t step = first; step < last; ++step) {
    loss.start_step(step);
    const Rows rows = batch_of(all, step, group);
    std::vector<double> scores;
    for (const auto& x : rows.x) scores.push_back(score(x, weights));
    const auto result = loss(group, {scores, rows.fraud});
    const auto by_score = result.grad.values<double>();
    Weights mean{};
    for (std::size_t i = 0; i < scores.size(); ++i)
      for (std::size_t f = 0; f < mean.size(); ++f) mean[f] += by_score[i] * rows.x[i][f];
    group.all_reduce(mean, tutti::ReduceOp::avg);
    for (std::size_t f = 0; f < mean.size(); ++f) weights[f] -= 0.1 * mean[f];
    lines.push_back({loss.in_warm_up() ? "warm-up"
                     : loss.in_blend() ? "blend"
                                       : "main",
                     loss.temperature(), result.loss, average_precision(all, weights),
                     loss.main().queued()});
  }
  return lines;
}

/// Runs `body` on `size` ranks and returns the result of rank 0.
Lines on_ranks(int size, const std::function<Lines(tutti::ProcessGroup&)>& body) {
  Lines lines;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=, &body, &lines] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      Lines own = body(group);
      if (rank == 0) lines = std::move(own);
    });
  ranks.clear();  // Joins the threads.
  return lines;
}

void print(const char* what, const Lines& lines, std::int64_t first) {
  std::printf("%s\nstep  phase    temperature  queued  loss      AP of all\n", what);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto step = first + static_cast<std::int64_t>(i);
    if (step % 35 != 34) continue;
    const Line& l = lines[i];
    std::printf("%4lld  %-7s  %11.4f  %6lld  %.6f  %.4f\n", static_cast<long long>(step),
                l.phase.c_str(), l.temperature, static_cast<long long>(l.queued), l.loss,
                l.precision);
  }
  std::printf("\n");
}

double difference(const Lines& whole, const Lines& rest) {
  double largest = 0;
  for (std::size_t i = 0; i < rest.size(); ++i)
    largest =
        std::max(largest, std::abs(whole[whole.size() - rest.size() + i].loss - rest[i].loss));
  return largest;
}

}  // namespace

int main() {
  constexpr std::int64_t middle = 65, end = 360;
  const auto file = (std::filesystem::temp_directory_path() /
                     ("tutti_" + std::to_string(std::random_device()()) + ".checkpoint"))
                        .string();
  const Lines whole = on_ranks(3, [&](auto& group) {
    Training training;
    return train(group, training, 0, end);
  });
  (void)on_ranks(3, [&](auto& group) {
    Training training;
    Lines lines = train(group, training, 0, middle);
    write(file, training, group);
    return lines;
  });
  const auto resume = [&](bool with_loss) {
    return on_ranks(2, [&](auto& group) {
      Training training;
      read(file, training, group, with_loss);
      return train(group, training, middle, end);
    });
  };
  const Lines rest = resume(true), without = resume(false);
  std::filesystem::remove(file);
  print("Three ranks, without a break", whole, 0);
  print("Two ranks, from the checkpoint of three before step 65", rest, middle);
  print("The same with the weights alone", without, middle);
  std::printf("from the checkpoint, losses differ by %s; with the weights alone by up to %.3f\n",
              difference(whole, rest) < 1e-12 ? "less than 1e-12"
                                              : std::to_string(difference(whole, rest)).c_str(),
              difference(whole, without));
}
