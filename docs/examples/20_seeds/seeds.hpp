#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/training.hpp>

// A linear layer, its loss, and ranks as threads: PyTorch itself provides these in the originals.

namespace seeds {

/// device_ids=[rank]: a rank of nccl has a device of its own; ranks of the other backends use the
/// host.
inline tutti::Device device_of(const std::string& backend, int local_rank) {
  return backend == "nccl" ? tutti::Device{tutti::DeviceType::cuda, local_rank} : tutti::Device{};
}

/// torch.multiprocessing.spawn(train, nprocs=world_size), with threads of this process.
inline void spawn(const std::function<void(tutti::ProcessGroup&)>& train, int world_size,
                  const std::string& backend = "local") {
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world_size; ++rank)
    ranks.emplace_back([=, &train] {
      auto group = tutti::ProcessGroup::create({.backend = backend,
                                                .store = store,
                                                .rank = rank,
                                                .size = world_size,
                                                .device = device_of(backend, rank)});
      train(group);
    });
}

/// torch.randn(count), with the same values in every run.
inline std::vector<float> randn(std::int64_t count, int seed) {
  std::mt19937 bits(static_cast<std::uint32_t>(seed));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {  // About normal, and the same with every standard library.
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296;
    value = static_cast<float>(sum);
  }
  return values;
}

/// torch.randint(0, classes, (count,)).
inline std::vector<std::int64_t> randint(std::int64_t classes, std::int64_t count, int seed) {
  std::mt19937 bits(static_cast<std::uint32_t>(seed));
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = static_cast<std::int64_t>(bits()) % classes;
  return values;
}

/// x.to(rank): a copy in the group's memory, which is the host's or a device's.
template <typename T>
tutti::Tensor to_rank(tutti::ProcessGroup& group, std::span<const T> x, const tutti::Shape& shape) {
  tutti::Tensor copy(group.memory(), shape, tutti::dtype_of<T>);
  group.memory().copy(copy.data(), x.data(), x.size_bytes(), {});
  return copy;
}

/// x.cpu().
template <typename T>
std::vector<T> cpu(tutti::ProcessGroup& group, const tutti::ConstTensorView& x) {
  std::vector<T> copy(static_cast<std::size_t>(x.shape.numel()));
  group.memory().copy(copy.data(), x.data, x.bytes(), {});
  return copy;
}

/// nn.Linear with torch.optim.SGD. Weights [outputs, inputs], biases [outputs] and their gradients
/// are in the group's memory. The arithmetic is the host's.
class Linear {
 public:
  Linear(tutti::ProcessGroup& group, std::int64_t inputs, std::int64_t outputs, int seed)
      : group_(group), inputs_(static_cast<std::size_t>(inputs)) {
    for (const tutti::Shape& shape : {tutti::Shape{outputs, inputs}, tutti::Shape{outputs}}) {
      std::vector<float> values = randn(shape.numel(), seed);
      for (float& value : values) value *= 0.3F;
      values_.push_back(to_rank<float>(group, values, shape));
      gradients_.push_back(to_rank<float>(group, std::vector<float>(values.size()), shape));
    }
  }

  std::vector<tutti::ddp::Parameter> parameters() {
    return {{"weight", values_[0]}, {"bias", values_[1]}};
  }

  /// x [N, inputs] -> [N, outputs].
  std::vector<float> operator()(std::span<const float> x) const {
    const auto weight = cpu<float>(group_, values_[0]);
    const auto bias = cpu<float>(group_, values_[1]);
    std::vector<float> y;
    for (std::size_t row = 0; row < x.size(); row += inputs_)
      for (std::size_t j = 0; j < bias.size(); ++j) {
        float sum = bias[j];
        for (std::size_t i = 0; i < inputs_; ++i) sum += weight[j * inputs_ + i] * x[row + i];
        y.push_back(sum);
      }
    return y;
  }

  /// loss.backward(): adds to the gradients, from the loss's gradient by y. With a reducer, which
  /// is what DDP adds, it also reports them as ready.
  void backward(std::span<const float> x, std::span<const float> by_y,
                tutti::ddp::GradientReducer* reducer = nullptr) {
    auto by_weight = cpu<float>(group_, gradients_[0]);
    auto by_bias = cpu<float>(group_, gradients_[1]);
    for (std::size_t k = 0; k < by_y.size(); ++k) {
      const std::size_t j = k % by_bias.size();
      const std::size_t row = k / by_bias.size() * inputs_;
      by_bias[j] += by_y[k];
      for (std::size_t i = 0; i < inputs_; ++i) by_weight[j * inputs_ + i] += by_y[k] * x[row + i];
    }
    write(gradients_[0], by_weight);
    write(gradients_[1], by_bias);
    if (reducer == nullptr) return;
    reducer->mark_ready(1, gradients_[1]);
    reducer->mark_ready(0, gradients_[0]);
    reducer->finish();
  }

  void zero_grad() {
    for (tutti::Tensor& gradient : gradients_)
      write(gradient, std::vector<float>(static_cast<std::size_t>(gradient.shape().numel())));
  }

  /// optimizer.step().
  void step(float rate) {
    for (std::size_t id = 0; id < values_.size(); ++id) {
      auto values = cpu<float>(group_, values_[id]);
      const auto gradient = cpu<float>(group_, gradients_[id]);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] -= rate * gradient[i];
      write(values_[id], values);
    }
  }

 private:
  void write(tutti::Tensor& to, const std::vector<float>& from) {
    group_.memory().copy(to.data(), from.data(), to.bytes(), {});
  }

  tutti::ProcessGroup& group_;
  std::size_t inputs_;
  std::vector<tutti::Tensor> values_;
  std::vector<tutti::Tensor> gradients_;
};

struct Loss {
  double loss = 0;
  std::vector<float> grad;  // By the outputs.
};
/// nn.MSELoss.
inline Loss mse(std::span<const float> outputs, std::span<const float> targets) {
  Loss result{0, std::vector<float>(outputs.size())};
  const auto count = static_cast<double>(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const double error = static_cast<double>(outputs[i]) - static_cast<double>(targets[i]);
    result.loss += error * error / count;
    result.grad[i] = static_cast<float>(2 * error / count);
  }
  return result;
}

}  // namespace seeds
