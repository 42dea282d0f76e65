#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <tutti/ddp/bucket.hpp>

/// A hook of this program. Each rank sends the k = ceil(ratio n) of the n elements of a bucket that
/// are largest in magnitude, and adds the others to its gradients of the next step. For f32
/// gradients in host memory. Copies share their state.
class TopK {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}

  tutti::Work operator()(tutti::ddp::Bucket& bucket) {
    // Unsent elements are stored by parameter, because the reducer changes the buckets after the
    // first step.
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const tutti::ddp::Slice& slice = bucket.slices()[i];
      const auto* gradient = static_cast<const float*>(bucket.gradient(i).data);
      std::vector<float>& unsent = (*unsent_)[slice.id];
      unsent.resize(static_cast<std::size_t>(slice.shape.numel()));
      for (std::size_t j = 0; j < unsent.size(); ++j) {
        unsent[j] += gradient[j];
        candidates.push_back(
            {&unsent[j], static_cast<std::uint32_t>(slice.offset) + static_cast<std::uint32_t>(j)});
      }
    }
    const auto k =
        static_cast<std::size_t>(std::ceil(ratio_ * static_cast<double>(candidates.size())));
    std::ranges::partial_sort(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(k),
                              std::greater<>(),
                              [](const Candidate& c) { return std::abs(*c.value); });
    const auto sent = std::make_shared<std::vector<Element>>(k);
    for (std::size_t i = 0; i < k; ++i) {
      (*sent)[i] = {*candidates[i].value, candidates[i].position};
      *candidates[i].value = 0;
    }

    // k is the same on all ranks, so an all_gather of equal blocks is enough.
    const auto ranks = static_cast<std::size_t>(bucket.group().size());
    const auto received = std::make_shared<std::vector<Element>>(k * ranks);
    return bucket.group()
        .all_gather_async(bytes(*sent), bytes(*received), {}, bucket.call())
        .then([&bucket, sent, received] {  // Keeps the arrays alive until the end of the gather.
          auto* sums = static_cast<float*>(bucket.buffer().data);
          std::fill_n(sums, bucket.buffer().shape.numel(), 0.0f);
          const auto scale = static_cast<float>(1 / bucket.divisor());
          // In rank order, so all ranks get the same bits.
          for (const Element& e : *received) sums[e.position] += e.value * scale;
        });
  }

 private:
  struct Candidate {
    float* value;
    std::uint32_t position;  // In the bucket.
  };
  struct Element {  // Of a message.
    float value;
    std::uint32_t position;
  };

  static tutti::TensorView bytes(std::vector<Element>& elements) {
    const auto count = static_cast<std::int64_t>(elements.size() * sizeof(Element));
    return {elements.data(), tutti::DType::u8, {count}};
  }

  double ratio_;
  std::shared_ptr<std::map<std::size_t, std::vector<float>>> unsent_ =
      std::make_shared<std::map<std::size_t, std::vector<float>>>();
};
