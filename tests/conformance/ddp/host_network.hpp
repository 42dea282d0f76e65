#pragma once

#include "conformance/ddp/network.hpp"

namespace tutti::test {

/// A network whose arrays in host memory are also those of the reducer.
template <typename T>
struct HostNetwork : Network<T> {
  using Network<T>::Network;

  std::vector<ddp::Parameter> parameters() {
    const char* const names[] = {"w1", "b1", "w2", "b2"};
    std::vector<ddp::Parameter> list;
    for (std::size_t id = 0; id < 4; ++id)
      list.push_back({names[id], view(std::span(this->values[id]), this->shape(id))});
    return list;
  }
  TensorView gradient(std::size_t id) {
    return view(std::span(this->gradients[id]), this->shape(id));
  }

  /// Makes one step of this rank with its rows, without the update. The result is the gradients of
  /// the global mean.
  void step(ddp::GradientReducer& reducer, ProcessGroup& group, unsigned number) {
    const auto rows = uneven_split(group.size(), number);
    // The reducer divides by W.
    const double weight = static_cast<double>(group.size()) / rows_of_batch;
    this->zero_gradients();
    this->backward(number, offset(rows, group.rank()), rows[index(group.rank())], weight,
                   [&](std::size_t id) { reducer.mark_ready(id, gradient(id)); });
    reducer.finish();
  }
};

}  // namespace tutti::test
