#include "reducer.hpp"

#include <string>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/tensor.hpp>

namespace tutti::gpu {

std::vector<std::int64_t> gradient_counts() {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 160; ++i) counts.push_back(std::int64_t{256} << (i % 12));
  return counts;
}

ReducerTime measure_reducer(const Rank& here, const std::vector<std::int64_t>& counts, int steps) {
  using Clock = std::chrono::steady_clock;
  const auto& cuda = *here.apis.cuda;
  const backend::cuda::DeviceScope scope(cuda, here.device);
  const backend::cuda::CudaStream stream(std::make_shared<backend::cuda::Gpu>(cuda, here.device));
  auto group = make_group(here, "reducer");
  std::vector<Tensor> gradients;
  std::vector<ddp::Parameter> parameters;
  for (const std::int64_t count : counts) {
    gradients.emplace_back(group.memory(), Shape{count}, DType::f32, stream.handle());
    TensorView value = gradients.back();
    value.data = nullptr;  // Gradients alone: there is no model.
    parameters.push_back({std::to_string(parameters.size()), value});
  }
  ddp::GradientReducer reducer(group, parameters);
  Mark from(cuda);
  Mark to(cuda);
  ReducerTime result;
  std::vector<double> device;
  std::vector<double> host;
  const int warm_up = 3;  // The first step tells the order of the buckets.
  for (int step = 0; step < steps + warm_up; ++step) {
    for (Tensor& gradient : gradients) {
      const std::vector<float> mine(static_cast<std::size_t>(gradient.shape().numel()),
                                    static_cast<float>(here.rank + step));
      group.memory().copy(gradient.data(), mine.data(), gradient.bytes(), stream.handle());
    }
    from.record(stream.get());
    const auto start = Clock::now();
    for (std::size_t id = gradients.size(); id-- > 0;)
      reducer.mark_ready(id, gradients[id], stream.handle());
    reducer.finish();
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    to.record(stream.get());
    const double us = here.elapsed_us(from.get(), to.get());
    if (step < warm_up) continue;
    device.push_back(us);
    host.push_back(took.count());
    const float want = static_cast<float>(here.size - 1) / 2 + static_cast<float>(step);
    for (Tensor& gradient : gradients) {
      std::vector<float> found(static_cast<std::size_t>(gradient.shape().numel()));
      group.memory().copy(found.data(), gradient.data(), gradient.bytes(), stream.handle());
      result.wrong += std::ranges::count_if(found, [&](float value) { return !(value == want); });
    }
  }
  result.device_us = median(device);
  result.host_us = median(host);
  group.barrier();
  return result;
}

}  // namespace tutti::gpu
