#include "trainer.hpp"

#include <algorithm>
#include <utility>

namespace framework {

using tutti::ReduceOp;

Trainer::Trainer(const Services& services, decltype(tutti::GroupOptions::decorate) decorate)
    : services_(services),
      group_(tutti::init({.group = {.backend = "local",
                                    .store = services.store,
                                    .memory = services.arena,
                                    .logger = services.logger,
                                    .decorate = std::move(decorate)},
                          .environment = services.scheduler})) {}

/// Returns an array filled with this rank's number.
tutti::Tensor Trainer::make(const tutti::Shape& shape) {
  tutti::Tensor tensor(group_.memory(), shape, tutti::DType::f32, services_.stream);
  std::ranges::fill(tensor.values<float>(), static_cast<float>(group_.rank()));
  return tensor;
}

float Trainer::step() {
  const tutti::CallOptions here{.stream = services_.stream};
  const int next = (group_.rank() + 1) % group_.size();
  const int previous = (group_.rank() + group_.size() - 1) % group_.size();

  // The gradients are reduced while the rest of the step runs.
  auto gradients = make({64, 16});
  auto averaged = group_.all_reduce_async(gradients, ReduceOp::avg,
                                          {.stream = services_.stream, .name = "gradients"});

  // Sends activations around the ring.
  const auto out = make({8});
  auto in = make({8});
  auto sent = group_.send_async(out, next, 0, here);
  group_.recv(in, previous, 0, here);
  sent.wait();

  // Every rank has one row more than the previous one.
  const int size = group_.size();
  std::array<std::int64_t, 8> rows{};
  for (int r = 0; r < size; ++r) rows[static_cast<std::size_t>(r)] = r + 1;
  const auto counts = std::span<const std::int64_t>(rows).first(static_cast<std::size_t>(size));
  const auto mine = make({group_.rank() + 1, 4});
  auto all = make({size * (size + 1) / 2, 4});
  group_.all_gather(mine, all, counts, here);

  averaged.wait();
  return gradients.values<float>()[0];
}

}  // namespace framework
