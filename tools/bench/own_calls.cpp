#include "bench/own_calls.hpp"

#include <array>

#include "bench/staging.hpp"

namespace tutti::tool {
namespace {

/// Values of the host as an array that the group takes.
template <typename T>
class Staged {
 public:
  Staged(ProcessGroup& group, std::span<T> values) : memory_(group.memory()), values_(values) {
    if (on_host(memory_)) return;
    array_ = Tensor(memory_, Shape{std::ssize(values)}, dtype_of<T>);
    memory_.copy(array_.data(), values.data(), values.size_bytes(), {});
  }
  TensorView view() { return on_host(memory_) ? TensorView(values_) : TensorView(array_); }
  /// The values are what the array holds now.
  void fetch() {
    if (!on_host(memory_)) memory_.copy(values_.data(), array_.data(), values_.size_bytes(), {});
  }

 private:
  Memory& memory_;
  std::span<T> values_;
  Tensor array_{};
};

}  // namespace

std::int64_t agree(ProcessGroup& group, std::int64_t rank0_decision) {
  std::array<std::int64_t, 1> decision{rank0_decision};
  Staged staged(group, std::span<std::int64_t>(decision));
  group.broadcast(staged.view(), 0);
  staged.fetch();
  return decision[0];
}

std::vector<double> gather(ProcessGroup& group, double own) {
  std::vector<double> all(static_cast<std::size_t>(group.size()));
  Staged in(group, std::span(&own, 1));
  Staged out(group, std::span(all));
  group.gather(in.view(), out.view(), 0);
  out.fetch();
  return all;
}

std::vector<std::int64_t> reduce(ProcessGroup& group, std::span<const std::int64_t> own,
                                 ReduceOp op) {
  std::vector<std::int64_t> values(own.begin(), own.end());
  Staged staged(group, std::span(values));
  group.reduce(staged.view(), staged.view(), 0, op);
  staged.fetch();
  return values;
}

}  // namespace tutti::tool
