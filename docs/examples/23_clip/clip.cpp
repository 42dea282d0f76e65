// Trains two encoders with CLIP's loss over the rows of all ranks. Each process is a rank: run it
// with `tutti run`. Losses and parameters have the bits of one process.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <tutti/losses/clip.hpp>
#include <tutti/training.hpp>

#include "encoder.hpp"

namespace {

constexpr std::size_t dims = 16;
constexpr std::size_t block_rows = 128;
constexpr std::size_t blocks = 4;  // Of a batch.
constexpr int steps = 60;
constexpr double rate = 0.5;

struct Pairs {
  std::vector<double> images, texts;  // [rows, 24], [rows, 16]
};

/// Pairs [begin, end): each image and its text are noisy views of one idea. The same in every run.
Pairs make_pairs(std::size_t begin, std::size_t end) {
  const auto mixed = [&](const std::vector<double>& idea, std::size_t size, std::mt19937 mix,
                         std::mt19937& noise, std::vector<double>& out) {
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0.3 * clip_example::normal(noise);
      for (const double x : idea) sum += clip_example::normal(mix) * x;
      out.push_back(sum);
    }
  };
  Pairs pairs;
  for (std::size_t row = begin; row < end; ++row) {
    std::mt19937 bits(static_cast<unsigned>(1000 + row));
    std::vector<double> idea(8);
    for (double& x : idea) x = clip_example::normal(bits);
    mixed(idea, 24, std::mt19937(2), bits, pairs.images);
    mixed(idea, 16, std::mt19937(3), bits, pairs.texts);
  }
  return pairs;
}

struct Model {
  clip_example::Encoder image{24, dims, 4}, text{16, dims, 5};
  double log_scale = std::log(10.0);

  void update(const std::vector<double>& gradient, double by_log_scale) {
    image.update({gradient.begin(), gradient.begin() + 24 * dims}, rate);
    text.update({gradient.begin() + 24 * dims, gradient.end()}, rate);
    log_scale -= rate / 4 * by_log_scale;
  }
  /// The number of these texts that are the most similar one to their image.
  int hits(const Pairs& pairs) const {
    const auto images = image.features(pairs.images);
    const auto texts = text.features(pairs.texts);
    const std::size_t rows = images.size() / dims;
    int hits = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      std::size_t best = 0;
      std::vector<double> similarity(rows);
      for (std::size_t j = 0; j < rows; ++j) {
        for (std::size_t d = 0; d < dims; ++d)
          similarity[j] += images[i * dims + d] * texts[j * dims + d];
        if (similarity[j] > similarity[best]) best = j;
      }
      hits += best == i ? 1 : 0;
    }
    return hits;
  }
};

struct Training {
  Model model;
  std::vector<double> losses;
};

/// Trains on the blocks of this rank. Without a group: on all.
Training train(tutti::ProcessGroup* group) {
  const std::size_t rank = group == nullptr ? 0 : static_cast<std::size_t>(group->rank());
  const std::size_t size = group == nullptr ? 1 : static_cast<std::size_t>(group->size());
  const std::size_t first = blocks * rank / size, last = blocks * (rank + 1) / size;
  const Pairs pairs = make_pairs(first * block_rows, last * block_rows);
  tutti::losses::Clip clip({.grad_scale = tutti::GradScale::mean});
  Training done;
  for (int step = 0; step < steps; ++step) {
    Model& model = done.model;
    const auto images = model.image.features(pairs.images);
    const auto texts = model.text.features(pairs.texts);
    const tutti::Shape shape{static_cast<std::int64_t>(images.size() / dims), dims};
    const tutti::losses::FeatureBatch batch{.anchors = {images.data(), tutti::DType::f64, shape},
                                            .candidates = {texts.data(), tutti::DType::f64, shape}};
    clip.set_logit_scale(std::exp(model.log_scale));
    const auto result = group == nullptr ? clip(batch) : clip(*group, batch);
    done.losses.push_back(result.loss);

    // The gradients of the parameters, for each block of rows: their sum over the blocks has the
    // same order on any number of ranks.
    std::vector<double> of_blocks;
    for (std::size_t block = 0; block < last - first; ++block) {
      model.image.backward(pairs.images, result.grad_anchors.values<double>(), block * block_rows,
                           block_rows, of_blocks);
      model.text.backward(pairs.texts, result.grad_candidates.values<double>(), block * block_rows,
                          block_rows, of_blocks);
    }
    constexpr std::size_t parameters = (24 + 16) * dims;
    tutti::GatheredRows gathered;
    if (group != nullptr) {
      const tutti::Shape rows{static_cast<std::int64_t>(last - first), parameters};
      gathered = tutti::all_gather_rows(*group, {of_blocks.data(), tutti::DType::f64, rows});
      const auto all = gathered.data.values<double>();
      of_blocks.assign(all.begin(), all.end());
    }
    std::vector<double> gradient(parameters);
    for (std::size_t i = 0; i < of_blocks.size(); ++i) gradient[i % parameters] += of_blocks[i];
    // GradScale::mean: each rank has 1 / W of the derivative.
    model.update(gradient,
                 result.grad_logit_scale * static_cast<double>(size) * std::exp(model.log_scale));
  }
  return done;
}

bool same_bits(const Training& a, const Training& b) {
  const auto equal = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  return equal(a.losses, b.losses) && equal(a.model.image.weights(), b.model.image.weights()) &&
         equal(a.model.text.weights(), b.model.text.weights()) &&
         equal({a.model.log_scale}, {b.model.log_scale});
}

}  // namespace

int main() {
  auto group = tutti::init({.alone_without_launcher = true});
  const Training together = train(&group);
  const Training alone = train(nullptr);
  if (group.rank() == 0) {
    std::printf("step      loss\n");
    for (const int step : {0, 4, 9, 19, 39, 59})
      std::printf("%4d  %.6f\n", step + 1, together.losses[static_cast<std::size_t>(step)]);
    const Pairs unseen = make_pairs(10000, 10100);
    std::printf("of 100 new images, %d find their text, before training %d\n",
                together.model.hits(unseen), Model().hits(unseen));
  }
  std::printf("losses and parameters have %s bits of one process\n",
              same_bits(together, alone) ? "the" : "not the");
}
