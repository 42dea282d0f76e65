#include "ddp/layout.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <tutti/gather.hpp>

namespace tutti::ddp {

Ids initial_order(std::size_t parameters) {
  Ids order(parameters);
  for (std::size_t i = 0; i < parameters; ++i) order[i] = parameters - 1 - i;
  return order;
}

std::vector<Ids> assign_buckets(std::span<const Parameter> parameters, const Ids& order,
                                const ReducerOptions& options) {
  struct Open {
    Ids ids;
    std::int64_t bytes = 0;
    std::size_t full_at = 0;  // Position of the bucket's last parameter in `order`.
    bool first = true;        // The first bucket of its dtype.
  };
  std::array<Open, dtype_count> open;
  std::vector<Open> closed;
  const auto close = [&](Open& bucket) {
    if (bucket.ids.empty()) return;
    closed.push_back(std::exchange(bucket, Open{.ids = {}, .first = false}));
  };
  for (std::size_t position = 0; position < order.size(); ++position) {
    const TensorView& value = parameters[order[position]].value;
    const auto bytes = padded_numel(value) * static_cast<std::int64_t>(size_of(value.dtype));
    Open& bucket = open[static_cast<std::size_t>(value.dtype)];
    const auto cap = bucket.first ? options.first_bucket_cap : options.bucket_cap;
    if (bucket.bytes > cap - bytes) close(bucket);
    bucket.ids.push_back(order[position]);
    bucket.bytes += bytes;
    bucket.full_at = position;
  }
  for (Open& bucket : open) close(bucket);
  std::ranges::sort(closed, {}, &Open::full_at);
  std::vector<Ids> buckets;
  buckets.reserve(closed.size());
  for (Open& bucket : closed) buckets.push_back(std::move(bucket.ids));
  return buckets;
}

Ids broadcast_order(ProcessGroup& group, const Ids& arrived, std::size_t parameters,
                    const ReducerOptions& options) {
  Ids order = arrived;
  std::vector<bool> seen(parameters);
  for (const std::size_t id : arrived) seen[id] = true;
  for (const std::size_t id : initial_order(parameters))
    if (!seen[id]) order.push_back(id);
  std::vector<std::int64_t> ids(order.begin(), order.end());
  const auto size = ids.size() * sizeof(std::int64_t);
  std::string bytes(reinterpret_cast<const char*>(ids.data()), size);
  broadcast_bytes(group, bytes, 0, {.timeout = options.timeout, .name = "ddp rebuild"});
  std::memcpy(ids.data(), bytes.data(), size);
  return Ids(ids.begin(), ids.end());
}

}  // namespace tutti::ddp
