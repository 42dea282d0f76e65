#include "kernels/gradients.hpp"

#include <array>

#include "kernels/reduce.hpp"
#include "kernels/reduce_arithmetic.hpp"

namespace tutti::internal {
namespace {

/// Reads an array of T at any address. Elements are converted to the type of the computation.
template <typename T>
class Elements {
 public:
  explicit Elements(const void* data) : data_(static_cast<const std::byte*>(data)) {}
  Acc<T> operator[](std::size_t i) const noexcept { return load<T>(data_ + i * sizeof(T)); }

 private:
  const std::byte* data_;
};

/// out[i] = element(i), rounded to T.
template <typename T, typename Element>
void fill(void* out, std::size_t n, const Element& element) noexcept {
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t i = 0; i < n; ++i) store<T>(to + i * sizeof(T), element(i));
}

template <typename W>
bool ties(W in, W extreme) noexcept {
  return in == extreme || (in != in && extreme != extreme);
}

}  // namespace

void scale(DType dtype, void* data, std::size_t n, double by) noexcept {
  const std::array<const void*, 1> in{data};
  const std::array<double, 1> scales{by};
  fold(dtype, ReduceOp::Kind::premul_sum, data, in, scales, n);
}

void multiply(DType dtype, void* out, const void* a, const void* b, std::size_t n) noexcept {
  reduce_fn(dtype, ReduceOp::Kind::prod)(out, a, b, n);
}

void mark_ties(DType dtype, const void* in, const void* extreme, std::int32_t* marks,
               std::size_t n) noexcept {
  visit_gradient(dtype, [&]<typename T>(T) {
    const Elements<T> x(in);
    const Elements<T> y(extreme);
    for (std::size_t i = 0; i < n; ++i) marks[i] = ties(x[i], y[i]) ? 1 : 0;
  });
}

void share_ties(DType dtype, const void* in, const void* extreme, const std::int32_t* count,
                void* weights, std::size_t n) noexcept {
  visit_gradient(dtype, [&]<typename T>(T) {
    const Elements<T> x(in);
    const Elements<T> y(extreme);
    fill<T>(weights, n, [&](std::size_t i) {
      return ties(x[i], y[i]) ? 1 / static_cast<Acc<T>>(count[i]) : Acc<T>(0);
    });
  });
}

}  // namespace tutti::internal
