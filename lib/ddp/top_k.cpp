#include <tutti/ddp/top_k.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <tutti/ddp/hooks.hpp>

#include "ddp/kept_arrays.hpp"
#include "ddp/segments.hpp"
#include "values/fail.hpp"
#include "values/saved_state.hpp"

namespace tutti {
namespace ddp {

using internal::failf;

namespace {

constexpr std::string_view top_k_magic = "tuttiTK1";
constexpr std::string_view top_k_text = "saved state of top_k_hook";

using Position = std::uint32_t;

/// The segments of a bucket, and its arrays.
struct TopKPlan {
  Bucket::Slices slices;
  std::vector<Segment> segments;
  std::int64_t numel = 0;
  std::int64_t k = 0;
  Tensor m;     // In the compute type. Between steps: the error.
  Tensor sent;  // k elements, then their positions.
  Tensor all;   // `sent` of every rank.
};

/// Returns an integer that orders numbers by magnitude; NaN is the largest.
template <typename T>
auto magnitude(T x) noexcept {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return std::bit_cast<Bits>(x) & (std::numeric_limits<Bits>::max() >> 1);
}

/// Points to the elements and the positions in a message.
template <typename T>
struct Message {
  T* elements;
  Position* positions;

  Message(void* data, std::int64_t k)
      : elements(static_cast<T*>(data)), positions(reinterpret_cast<Position*>(elements + k)) {}
};

/// Moves the k elements of m with the largest magnitudes to `to`. The rest of m is the error.
template <typename T>
void choose(T* m, std::int64_t n, std::int64_t k, std::vector<std::byte>& scratch, Message<T> to) {
  using Bits = decltype(magnitude(T()));
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(n) * sizeof(Bits)));
  const std::span keys(reinterpret_cast<Bits*>(scratch.data()), static_cast<std::size_t>(n));
  std::transform(m, m + n, keys.begin(), magnitude<T>);
  std::ranges::nth_element(keys, keys.begin() + (k - 1), std::greater<>());
  const Bits least = keys[static_cast<std::size_t>(k - 1)];
  // Number of elements of the smallest chosen magnitude that still fit.
  auto ties = k - std::ranges::count_if(keys.first(static_cast<std::size_t>(k)),
                                        [&](Bits key) { return key > least; });
  std::int64_t next = 0;
  for (std::int64_t i = 0; next < k; ++i) {
    const Bits key = magnitude(m[i]);
    if (key < least || (key == least && ties-- <= 0)) continue;
    to.elements[next] = std::exchange(m[i], T(0));
    to.positions[next++] = static_cast<Position>(i);
  }
}

/// Writes the sum of all ranks' messages, divided by the divisor, to the bucket.
template <typename T>
void add_up(const TopKPlan& plan, const Bucket& bucket) {
  const auto scale = static_cast<T>(1 / bucket.divisor());
  with_elements<T>(bucket.buffer(), [&](auto* elements) {
    using E = std::remove_pointer_t<decltype(elements)>;
    for (const Segment& s : plan.segments) std::fill_n(elements + s.from, s.count, E(T(0)));
    const std::size_t bytes = plan.sent.bytes();
    for (int rank = 0; rank < bucket.group().size(); ++rank) {
      auto* data = static_cast<const std::byte*>(plan.all.data());
      const Message<T> message(const_cast<std::byte*>(data) + bytes * static_cast<unsigned>(rank),
                               plan.k);
      auto segment = plan.segments.begin();
      for (std::int64_t i = 0; i < plan.k; ++i) {
        const std::int64_t at = message.positions[i];  // Positions are in ascending order.
        while (at >= segment->at + segment->count) ++segment;
        E& element = elements[segment->from + at - segment->at];
        element = static_cast<E>(static_cast<T>(element) + message.elements[i] * scale);
      }
    }
  });
}

TensorView error_of(TopKPlan& plan, const Segment& s) {
  auto* first = static_cast<std::byte*>(plan.m.data());
  return {first + static_cast<std::size_t>(s.at) * size_of(plan.m.dtype()), plan.m.dtype(),
          Shape::vector(s.count)};
}

}  // namespace

struct TopKState::Impl {
  TopKOptions options;
  std::int64_t step = 0;
  KeptArrays errors;  // By parameter id, without parameters that are in a plan.
  std::vector<std::unique_ptr<TopKPlan>> plans;  // Indexed by Bucket::index().
  std::vector<std::byte> scratch;

  std::unique_ptr<TopKPlan> make_plan(const Bucket& bucket);
  void keep(TopKPlan& plan, KeptArrays& in) const;
  TopKPlan& plan_of(const Bucket& bucket);
  Work run(Bucket& bucket);
};

std::unique_ptr<TopKPlan> TopKState::Impl::make_plan(const Bucket& bucket) {
  auto plan = std::make_unique<TopKPlan>();
  plan->slices = bucket.slices();
  for (const Slice& slice : bucket.slices()) {
    const std::int64_t count = slice.shape.numel();
    if (count == 0) continue;
    plan->segments.push_back({slice.id, slice.offset, plan->numel, count});
    plan->numel += count;
  }
  if (plan->numel > std::numeric_limits<Position>::max())
    failf(Errc::unsupported, "bucket {} has {} elements to send; top_k_hook sends 32-bit positions",
          bucket.index(), plan->numel);
  if (plan->numel == 0) return plan;
  const double wanted = std::ceil(options.ratio * static_cast<double>(plan->numel));
  plan->k = std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted), 1, plan->numel);
  const DType dtype = compute_dtype(bucket.buffer().dtype);
  // Padding keeps the messages of f64 aligned in the gathered array.
  const auto unit = static_cast<std::int64_t>(size_of(dtype));
  const auto positions = (plan->k * 4 + unit - 1) / unit * unit;
  const std::int64_t bytes = plan->k * unit + positions;
  Memory& memory = bucket.group().memory();
  plan->m = Tensor(memory, Shape::vector(plan->numel), dtype);
  std::memset(plan->m.data(), 0, plan->m.bytes());
  plan->sent = Tensor(memory, Shape::vector(bytes), DType::u8);
  std::memset(plan->sent.data(), 0, plan->sent.bytes());
  plan->all = Tensor(memory, Shape::vector(bytes * bucket.group().size()), DType::u8);
  for (const Segment& s : plan->segments)
    errors.take_or_throw(s.id, error_of(*plan, s), "the error of parameter");
  return plan;
}

void TopKState::Impl::keep(TopKPlan& plan, KeptArrays& in) const {
  if (!options.error_feedback) return;
  for (const Segment& s : plan.segments) in.put(s.id, error_of(plan, s));
}

TopKPlan& TopKState::Impl::plan_of(const Bucket& bucket) {
  const auto index = static_cast<std::size_t>(bucket.index());
  if (index >= plans.size() || !same_slices(plans[index]->slices, bucket.slices())) {
    // The buckets were rebuilt. This bucket and the later ones were not yet reduced in this step.
    for (std::size_t i = index; i < plans.size(); ++i) keep(*plans[i], errors);
    plans.resize(std::min(index, plans.size()));
    if (plans.size() != index)
      failf(Errc::invalid_argument,
            "top_k_hook got bucket {} before bucket {}; buckets must come in the order of their "
            "index",
            index, plans.size());
    plans.push_back(make_plan(bucket));
  }
  return *plans[index];
}

Work TopKState::Impl::run(Bucket& bucket) {
  check_computable(bucket, "top_k_hook");
  const auto now = step;
  if (bucket.is_last()) ++step;
  if (now < options.start_step) return all_reduce_hook(bucket);
  TopKPlan& plan = plan_of(bucket);
  if (plan.numel == 0) return {};
  Work result;
  with_compute_type(bucket.buffer().dtype, [&]<typename T>() {
    T* m = static_cast<T*>(plan.m.data());
    pack(std::span<const Segment>(plan.segments), bucket.buffer(), m, options.error_feedback);
    choose(m, plan.numel, plan.k, scratch, Message<T>(plan.sent.data(), plan.k));
    result = bucket.group()
                 .all_gather_async(plan.sent, plan.all, plan.sent.shape().rows(), bucket.call())
                 .then([&plan, &bucket] { add_up<T>(plan, bucket); });
  });
  return result;
}

}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

TopKState::TopKState(const TopKOptions& options) : impl_(std::make_unique<Impl>()) {
  if (!(options.ratio > 0 && options.ratio <= 1))
    failf(Errc::invalid_argument, "ratio of top_k_hook is {}; it must be above 0 and at most 1",
          options.ratio);
  if (options.start_step < 0)
    failf(Errc::invalid_argument, "start_step of top_k_hook is {}; it must be 0 or more",
          options.start_step);
  impl_->options = options;
}

TopKState::~TopKState() = default;

const TopKOptions& TopKState::options() const noexcept {
  return impl_->options;
}

std::int64_t TopKState::step() const noexcept {
  return impl_->step;
}

std::string TopKState::save() const {
  KeptArrays errors = impl_->errors;
  for (const auto& plan : impl_->plans) impl_->keep(*plan, errors);
  internal::Writer out;
  out.u8(impl_->options.error_feedback ? 1 : 0).i64(impl_->step);
  errors.write(out);
  return internal::seal(top_k_magic, out);
}

void TopKState::load(std::string_view state) {
  auto in = internal::unseal(top_k_magic, top_k_text, state).content;
  const bool feedback = in.u8() != 0;
  if (feedback != impl_->options.error_feedback)
    failf(Errc::invalid_argument,
          "error_feedback is {} in the saved state of top_k_hook and {} in this one; they must be "
          "equal",
          feedback, impl_->options.error_feedback);
  const auto step = in.i64();
  auto errors = KeptArrays::read(in);
  in.end();
  if (step < 0)
    failf(Errc::invalid_argument, "the {} is damaged ({} bytes)", top_k_text, state.size());
  impl_->step = step;
  impl_->errors = std::move(errors);
  impl_->plans.clear();
}

Work top_k_hook(TopKState& state, Bucket& bucket) {
  return state.impl_->run(bucket);
}

CommHook top_k_hook(std::shared_ptr<TopKState> state) {
  if (state == nullptr)
    failf(Errc::invalid_argument, "the state of top_k_hook is null; pass a TopKState");
  return [state = std::move(state)](Bucket& bucket) { return top_k_hook(*state, bucket); };
}

}  // namespace ddp
}  // namespace tutti
