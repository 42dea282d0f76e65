#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <vector>

#include <tutti/ddp/bucket.hpp>

/// A hook of this program, with which a rank communicates with two others per step. Each rank
/// computes its parameters after the step, u = parameters - rate * gradients. In step t rank r
/// sends u to rank r + d and receives u' from rank r - d, where d = 2^(t mod ceil(log2 W)): the
/// rotating partners of GossipGraD (Daily et al. 2018, arXiv 1803.05880). Its result is the
/// gradient with which the optimizer arrives at (u + u') / 2. This keeps the mean of the ranks'
/// parameters: it changes as with the mean gradient. For gradients and parameters of f32 in host
/// memory, and an optimizer that subtracts rate * gradients.
class Gossip {
 public:
  explicit Gossip(double rate) : rate_(static_cast<float>(rate)) {}

  tutti::Work operator()(tutti::ddp::Bucket& bucket) const {
    tutti::ProcessGroup& group = bucket.group();
    const int size = group.size();
    const auto distances = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
    const int d = distances == 0 ? 0 : 1 << (bucket.step() % distances);

    const auto n = static_cast<std::size_t>(bucket.buffer().shape.numel());
    const auto mine = std::make_shared<std::vector<float>>(n);
    const auto theirs = std::make_shared<std::vector<float>>(n);
    // With a divisor other than W, gradients have the scale of a reduction over all ranks.
    const float scale = rate_ * static_cast<float>(size / bucket.divisor());
    for_each(bucket, [&](std::size_t at, float parameter, float& gradient) {
      (*mine)[at] = parameter - scale * gradient;
    });
    return group
        .sendrecv_async(*mine, (group.rank() + d) % size, *theirs, (group.rank() - d + size) % size,
                        0, bucket.call())
        .then([&bucket, mine, theirs, rate = rate_] {
          for_each(bucket, [&](std::size_t at, float parameter, float& gradient) {
            gradient = (parameter - ((*mine)[at] + (*theirs)[at]) / 2) / rate;
          });
        });
  }

 private:
  /// Calls f(place in the bucket, parameter, gradient) for each element.
  template <typename F>
  static void for_each(const tutti::ddp::Bucket& bucket, F&& f) {
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const auto parameters = bucket.parameter(i).values<float>();
      const auto gradients = bucket.gradient(i).values<float>();
      for (std::size_t j = 0; j < gradients.size(); ++j)
        f(static_cast<std::size_t>(bucket.slices()[i].offset) + j, parameters[j], gradients[j]);
    }
  }

  float rate_;
};
