#include "ddp/gradient_arrays.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "ddp/descriptions.hpp"
#include "kernels/copy.hpp"

namespace tutti::ddp {
namespace {

std::byte* at(void* data, std::int64_t offset, DType dtype) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(offset) * size_of(dtype);
}

}  // namespace

GradientArrays::GradientArrays(ProcessGroup& group, std::span<const Parameter> parameters,
                               const std::vector<Ids>& buckets, const CallOptions& options,
                               std::size_t large, int generation)
    : group_(group),
      parameters_(parameters),
      large_(large),
      generation_(generation),
      probe_(group.memory(), Shape{1}, DType::u8),
      locations_(parameters.size()) {
  std::array<std::int64_t, dtype_count> numel{};
  for (const Parameter& p : parameters)
    numel[static_cast<std::size_t>(p.value.dtype)] += padded_numel(p.value);
  for (int dtype = 0; dtype < dtype_count; ++dtype) {
    const auto n = numel[static_cast<std::size_t>(dtype)];
    if (n == 0) continue;
    const auto type = static_cast<DType>(dtype);
    arrays_.push_back({type, Tensor(group.registrable_memory(), Shape{n}, type), {}});
    clear(all_of(arrays_.back()), {});
    wait_for({});
    arrays_.back().registration = group.register_memory(arrays_.back().data, options);
  }
  lay_out(buckets);
  set_copied(false);
}

void GradientArrays::set_copied(bool large) noexcept {
  std::size_t bytes = 0;
  for (std::size_t id = 0; id < parameters_.size(); ++id)
    if (large || !is_large(id)) bytes += parameters_[id].value.bytes();
  // Then the copy of a gradient has left the cache before it is used.
  past_cache_ =
      group_.memory().device().type == DeviceType::cpu && bytes > internal::last_level_cache();
}

void GradientArrays::lay_out(const std::vector<Ids>& buckets) {
  std::array<std::int64_t, dtype_count> next{};
  buckets_.clear();
  buckets_.reserve(buckets.size());
  for (const Ids& members : buckets) {
    Ids ids;
    ids.reserve(members.size());
    for (const bool large : {false, true})
      std::ranges::copy_if(members, std::back_inserter(ids),
                           [&](std::size_t id) { return is_large(id) == large; });
    const DType dtype = parameters_[ids.front()].value.dtype;
    std::int64_t& begin = next[static_cast<std::size_t>(dtype)];
    const auto index = static_cast<int>(buckets_.size());
    Bucket::Slices slices;
    slices.reserve(ids.size());
    std::int64_t numel = 0;
    for (const std::size_t id : ids) {
      slices.push_back({id, numel, parameters_[id].value.shape, parameters_[id].value});
      numel += padded_numel(parameters_[id].value);
    }
    const auto array = std::ranges::find(arrays_, dtype, &Array::dtype);
    const bool empty = array == arrays_.end();  // No parameter of this dtype has elements.
    const TensorView buffer(empty ? nullptr : at(array->data.data(), begin, dtype), dtype,
                            Shape{numel}, group_.memory().device());
    buckets_
        .emplace_back(group_, buffer, std::make_shared<const Bucket::Slices>(std::move(slices)),
                      index, static_cast<int>(buckets.size()))
        .set_generation(generation_);
    begin += numel;
    for (std::size_t i = 0; i < ids.size(); ++i)
      locations_[ids[i]] = {index, buckets_.back().gradient(i)};
  }
}

void GradientArrays::rearrange(const std::vector<Ids>& buckets) {
  auto& memory = group_.memory();
  const std::vector<Bucket> before = buckets_;
  std::vector<Tensor> copies;
  for (Array& array : arrays_) {
    copies.emplace_back(memory, array.data.shape(), array.dtype);
    memory.copy(copies.back().data(), array.data.data(), array.data.bytes(), {});
    clear(all_of(array), {});
  }
  ++generation_;
  lay_out(buckets);
  for (const Bucket& bucket : before) {
    const auto array = std::ranges::find(arrays_, bucket.buffer().dtype, &Array::dtype);
    if (array == arrays_.end()) continue;
    auto* const copy =
        static_cast<std::byte*>(copies[static_cast<std::size_t>(array - arrays_.begin())].data());
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const TensorView old = bucket.gradient(i);
      const auto offset =
          static_cast<std::byte*>(old.data) - static_cast<std::byte*>(array->data.data());
      const TensorView now = gradient(bucket.slices()[i].id);
      if (now.bytes() != 0) memory.copy(now.data, copy + offset, now.bytes(), {});
    }
  }
  wait_for({});  // The host waits, because the producers' streams do not wait for these copies.
}

void GradientArrays::broadcast_values(const CallOptions& options) {
  if (std::ranges::none_of(parameters_, [](const auto& p) { return p.value.data != nullptr; }))
    return;
  auto& memory = group_.memory();
  const auto for_each_value = [&](const auto& f) {
    for (std::size_t id = 0; id < parameters_.size(); ++id)
      if (parameters_[id].value.data != nullptr && parameters_[id].value.bytes() != 0)
        f(parameters_[id].value, gradient(id));
  };
  if (group_.rank() == 0)
    for_each_value([&](const TensorView& value, const TensorView& place) {
      memory.copy(place.data, value.data, value.bytes(), {});
    });
  for (Array& array : arrays_) group_.broadcast(array.data, 0, options);
  if (group_.rank() != 0)
    for_each_value([&](const TensorView& value, const TensorView& place) {
      memory.copy(value.data, place.data, value.bytes(), {});
    });
  for (Array& array : arrays_) clear(all_of(array), {});
  wait_for({});
}

std::string GradientArrays::problem_with(std::size_t id, const TensorView& gradient,
                                         bool in_bucket) const {
  const TensorView& value = parameters_[id].value;
  if (gradient.dtype != value.dtype || !(gradient.shape == value.shape) ||
      !(gradient.device == value.device))
    return fmt::format(
        "the gradient of {} is {} {} on {}; the parameter is {} {} on {}", name_of(parameters_, id),
        tutti::name_of(gradient.dtype), to_string(gradient.shape), to_string(gradient.device),
        tutti::name_of(value.dtype), to_string(value.shape), to_string(value.device));
  if (value.bytes() == 0 || gradient.data == this->gradient(id).data) return {};
  if (gradient.data == nullptr)
    return fmt::format("the gradient of {} is null; pass the array's address, or use mark_unused()",
                       name_of(parameters_, id));
  if (in_bucket || contains(gradient.data))
    return fmt::format(
        "the gradient of {} is not at its place in the bucket; ask gradient({}) for it, again "
        "after the first step",
        name_of(parameters_, id), id);
  return {};
}

bool GradientArrays::contains(const void* data) const noexcept {
  const std::less<> before;  // `<` is not defined for pointers into different arrays.
  return std::ranges::any_of(arrays_, [&](const Array& array) {
    const auto* begin = static_cast<const std::byte*>(array.data.data());
    return !before(data, begin) && before(data, begin + array.data.bytes());
  });
}

void GradientArrays::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (past_cache_)
    internal::copy_past_cache(to, from, bytes);
  else
    group_.memory().copy(to, from, bytes, stream);
}

void GradientArrays::clear(std::size_t id, Stream stream) {
  clear(gradient(id), stream);
}

void GradientArrays::clear(const TensorView& view, Stream stream) {
  if (view.device.type == DeviceType::cpu) {
    if (view.bytes() != 0) std::memset(view.data, 0, view.bytes());
    return;
  }
  static constexpr std::array<std::byte, 1 << 16> zeros{};
  auto* data = static_cast<std::byte*>(view.data);
  for (std::size_t done = 0; done < view.bytes(); done += zeros.size())
    group_.memory().copy(data + done, zeros.data(), std::min(zeros.size(), view.bytes() - done),
                         stream);
}

void GradientArrays::wait_for(Stream stream) {
  if (group_.memory().device().type == DeviceType::cpu) return;
  std::byte unused{};
  group_.memory().copy(&unused, probe_.data(), 1, stream);
}

}  // namespace tutti::ddp
