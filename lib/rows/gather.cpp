#include <tutti/gather.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <tutti/half.hpp>

#include "group/host_call.hpp"
#include "group/refuse.hpp"
#include "rows/announcement.hpp"
#include "rows/gather_algo.hpp"
#include "rows/gather_arrays.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace {

using internal::Announcement;
using internal::as_rows;
using internal::copy_rows;
using internal::make_or_refuse;
using internal::Offer;
using internal::rows_of;

Memory& memory_of(ProcessGroup& group, const GatherOptions& options) {
  return options.memory != nullptr ? *options.memory : group.memory();
}

/// What all ranks have of one array, from their messages.
void place(ProcessGroup& group, const Announcement& said, std::size_t array, const TensorView& out,
           const RowLayout& layout, Stream stream) {
  for (int r = 0; r < group.size(); ++r) {
    const auto to = rows_of(out, layout.offset(r), layout[r]);
    copy_rows(group, to.data, said.data(r, array), to.bytes(), stream);
  }
}

template <typename T>
bool holds(double value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value == 0 || value == 1;
  } else if constexpr (std::is_integral_v<T>) {
    // 2^digits is the first that does not fit; both limits are exact in a double.
    return value == std::trunc(value) &&
           value >= static_cast<double>(std::numeric_limits<T>::min()) &&
           value < std::ldexp(1.0, std::numeric_limits<T>::digits);
  } else {
    return true;
  }
}

/// The element that `value` is in a dtype. @throws Error invalid_argument when it is none.
std::vector<std::byte> element_of(DType dtype, double value) {
  std::vector<std::byte> bytes(size_of(dtype));
  const auto put = [&]<typename T>(T) {
    if (!holds<T>(value))
      internal::failf(Errc::invalid_argument, "fill {} is no value of {}", value, name_of(dtype));
    const auto element = static_cast<T>(value);
    std::memcpy(bytes.data(), &element, sizeof element);
  };
  const auto put_half = [&]<typename T>(T) {
    const T element(static_cast<float>(value));
    std::memcpy(bytes.data(), &element, sizeof element);
  };
  switch (dtype) {
    case DType::u8:
      put(std::uint8_t{});
      break;
    case DType::i8:
      put(std::int8_t{});
      break;
    case DType::i32:
      put(std::int32_t{});
      break;
    case DType::u32:
      put(std::uint32_t{});
      break;
    case DType::i64:
      put(std::int64_t{});
      break;
    case DType::u64:
      put(std::uint64_t{});
      break;
    case DType::boolean:
      put(bool{});
      break;
    case DType::f32:
      put(float{});
      break;
    case DType::f64:
      put(double{});
      break;
    case DType::f16:
      put_half(Float16{});
      break;
    case DType::bf16:
      put_half(BFloat16{});
      break;
    case DType::f8e4m3:
      put_half(Float8E4M3{});
      break;
    case DType::f8e5m2:
      put_half(Float8E5M2{});
      break;
  }
  return bytes;
}

/// Writes the element behind the rows of every rank that has fewer than the largest.
void fill_behind(ProcessGroup& group, PaddedRows& padded, std::span<const std::byte> element,
                 Stream stream) {
  if (padded.data.bytes() == 0) return;
  const auto& layout = padded.layout;
  const auto slot = padded.data.bytes() / static_cast<std::size_t>(layout.ranks());
  const auto row_bytes = slot / static_cast<std::size_t>(layout.max());
  std::vector<std::byte> padding;
  auto* to = static_cast<std::byte*>(padded.data.data());
  for (const auto rows : layout.counts()) {
    const auto bytes = static_cast<std::size_t>(rows) * row_bytes;
    const auto left = slot - bytes;
    while (padding.size() < left) padding.insert(padding.end(), element.begin(), element.end());
    copy_rows(group, to + bytes, padding.data(), left, stream);
    to += slot;
  }
}

Shape with_ranks(int ranks, std::int64_t rows, const Shape& shape) {
  std::vector<std::int64_t> dims{ranks, rows};
  const auto row = shape.row_dims();
  dims.insert(dims.end(), row.begin(), row.end());
  return Shape(std::span<const std::int64_t>(dims));
}

}  // namespace

GatheredArrays internal::gather_arrays(ProcessGroup& group, const Offer& offer,
                                       const GatherOptions& options) {
  const auto caller = offer.caller;
  std::vector<ConstTensorView> locals;
  for (const auto& array : offer.arrays) locals.push_back(as_rows(array));
  auto refused = offer.refused;
  for (const auto& local : locals)
    if (!refused && local.shape.rows() != locals[0].shape.rows())
      refused = Error(Errc::invalid_argument,
                      fmt::format("arrays that share a layout have {} and {} rows",
                                  locals[0].shape.rows(), local.shape.rows()));
  if (locals.empty()) refused = Error(Errc::invalid_argument, "there are no arrays");

  GatheredArrays result;
  const auto allocate = [&] {
    for (const auto& local : locals)
      result.data.emplace_back(memory_of(group, options),
                               local.shape.with_rows(result.layout.total()), local.dtype,
                               options.call.stream);
  };
  if (options.layout != nullptr) {
    result.layout = *options.layout;
    make_or_refuse(group, {.kind = Operation::all_gather}, options.call, [&] {
      if (refused)
        throw internal::gather_error(refused->code(), group, caller, group.rank(),
                                     refused->message());
      allocate();
    });
  } else {
    auto mine = offer;
    mine.arrays = locals;
    mine.refused = refused;
    std::string agree(offer.agree);
    if (options.algo != GatherAlgo::automatic)
      agree += fmt::format("{}algorithm {}", agree.empty() ? "" : ", ", name_of(options.algo));
    mine.agree = agree;
    const Announcement said(group, mine, options.call);
    result.layout = said.layout();
    if (said.complete()) {
      allocate();
      for (std::size_t i = 0; i < locals.size(); ++i)
        place(group, said, i, result.data[i], result.layout, options.call.stream);
      return result;
    }
    if (offer.only_small) return result;
    make_or_refuse(group, {.kind = Operation::all_gather}, options.call, allocate);
  }
  for (std::size_t i = 0; i < locals.size(); ++i)
    internal::gather_rows_by(options.algo, group, locals[i], result.data[i], result.layout,
                             options.call);
  return result;
}

GatheredArrays internal::gather_host_arrays(ProcessGroup& group, const Offer& offer,
                                            const GatherOptions& options) {
  if (on_host(group)) return gather_arrays(group, offer, options);
  // Told as arrays of the group's device, where an announcement looks at the shapes alone.
  std::vector<ConstTensorView> told(offer.arrays.begin(), offer.arrays.end());
  for (auto& array : told) array.device = group.memory().device();
  auto mine = offer;
  mine.arrays = told;
  const Announcement said(group, mine, options.call);
  GatheredArrays result{.data = {}, .layout = said.layout()};
  const auto bytes_of = [&](int rank) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < told.size(); ++i)
      bytes += static_cast<std::size_t>(said.shape(rank, i).numel()) * size_of(told[i].dtype);
    return bytes;
  };
  for (int r = 0; offer.only_small && r < group.size(); ++r)
    if (bytes_of(r) > offer.small) return result;
  make_or_refuse(group, {.kind = Operation::all_gather}, options.call, [&] {
    for (const auto& array : told)
      result.data.emplace_back(host_memory(), array.shape.with_rows(result.layout.total()),
                               array.dtype);
  });
  for (std::size_t i = 0; i < told.size(); ++i)
    if (result.data[i].bytes() != 0)
      host_call(group,
                {.kind = Operation::all_gather,
                 .in = offer.arrays[i],
                 .out = result.data[i],
                 .rows = result.layout},
                options.call, offer.caller);
  return result;
}

}  // namespace tutti

namespace [[gnu::visibility("default")]] tutti {

GatheredRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                             const GatherOptions& options) {
  auto all =
      internal::gather_arrays(group, {.caller = "all_gather_rows", .arrays = {&local, 1}}, options);
  return {std::move(all.data[0]), std::move(all.layout)};
}

GatheredArrays all_gather_rows(ProcessGroup& group, std::span<const ConstTensorView> locals,
                               const GatherOptions& options) {
  return internal::gather_arrays(group, {.caller = "all_gather_rows", .arrays = locals}, options);
}

void all_gather_rows(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
                     const RowLayout& layout, const GatherOptions& options) {
  internal::gather_rows_by(options.algo, group, as_rows(local), out, layout, options.call);
}

PaddedRows all_gather_padded(ProcessGroup& group, const ConstTensorView& array, double fill,
                             const GatherOptions& options) {
  constexpr std::string_view caller = "all_gather_padded";
  const auto local = as_rows(array);
  std::optional<Error> refused;
  std::vector<std::byte> element;
  try {
    if (static_cast<int>(local.dtype) < dtype_count) element = element_of(local.dtype, fill);
    if (local.shape.ndim() == Shape::max_dims)
      internal::failf(Errc::invalid_argument,
                      "the array has {} dimensions, the result would have {}", Shape::max_dims,
                      Shape::max_dims + 1);
  } catch (const Error& error) {
    refused = error;
  }
  std::optional<Announcement> said;
  PaddedRows result;
  if (options.layout == nullptr) {
    said.emplace(group, Offer{.caller = caller, .arrays = {&local, 1}, .refused = refused},
                 options.call);
    result.layout = said->layout();
  } else {
    result.layout = *options.layout;
  }
  const auto& layout = result.layout;
  const auto stream = options.call.stream;
  Tensor rows;
  const auto allocate = [&] {
    if (refused)
      throw internal::gather_error(refused->code(), group, caller, group.rank(),
                                   refused->message());
    result.data =
        Tensor(memory_of(group, options), with_ranks(layout.ranks(), layout.max(), local.shape),
               local.dtype, stream);
    if (!said || !said->complete())
      rows = Tensor(group.memory(), local.shape.with_rows(layout.total()), local.dtype, stream);
  };
  if (said && said->complete())
    allocate();
  else
    make_or_refuse(group, {.kind = Operation::all_gather}, options.call, allocate);
  // Before the rows: on a device the host waits for what it copies there.
  fill_behind(group, result, element, stream);
  if (rows.data() != nullptr)
    internal::gather_rows_by(options.algo, group, local, rows, layout, options.call);

  auto* to = static_cast<std::byte*>(result.data.data());
  const auto row_bytes = local.row_bytes();
  for (int r = 0; r < group.size(); ++r) {
    const auto* from = rows.data() != nullptr
                           ? rows_of(std::as_const(rows).view(), layout.offset(r), layout[r]).data
                           : said->data(r, 0);
    copy_rows(group, to, from, static_cast<std::size_t>(layout[r]) * row_bytes, stream);
    to += static_cast<std::size_t>(layout.max()) * row_bytes;
  }
  return result;
}

GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& array, int root,
                         const GatherOptions& options) {
  const auto local = as_rows(array);
  GatheredRows result;
  std::optional<Announcement> said;
  if (options.layout == nullptr) {
    std::optional<Error> refused;
    if (root < 0 || root >= group.size())
      refused =
          Error(Errc::invalid_argument,
                fmt::format("root is {}; this group has ranks 0 to {}", root, group.size() - 1));
    // Everybody gets what comes along, so it is little.
    said.emplace(group,
                 Offer{.caller = "gather_rows",
                       .arrays = {&local, 1},
                       .root = root,
                       .small = 4096,
                       .refused = refused},
                 options.call);
  }
  result.layout = said ? said->layout() : *options.layout;
  const bool at_root = group.rank() == root;
  const auto allocate = [&] {
    result.data = Tensor(memory_of(group, options),
                         at_root ? local.shape.with_rows(result.layout.total()) : Shape{0},
                         local.dtype, options.call.stream);
  };
  if (said && said->complete()) {
    allocate();
    if (at_root) place(group, *said, 0, result.data, result.layout, options.call.stream);
    return result;
  }
  make_or_refuse(group, {.kind = Operation::gather, .root = root}, options.call, allocate);
  group.gather(local, result.data, root, result.layout, options.call);
  return result;
}

Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout* layout,
                    int root, const GatherOptions& options) {
  constexpr std::string_view caller = "scatter_rows";
  const bool at_root = group.rank() == root;
  // What root says: whether it refuses, the shape of a row and everybody's rows.
  struct Said {
    std::int64_t refused = 0;
    std::int64_t dtype = 0;
    std::int64_t ndim = 0;
    std::int64_t dims[Shape::max_dims] = {};
  };
  constexpr std::size_t words = sizeof(Said) / sizeof(std::int64_t);
  std::vector<std::int64_t> message(words + static_cast<std::size_t>(group.size()));
  std::optional<Error> refused;
  const auto device = group.memory().device();
  if (at_root) {
    refused = internal::unfit(whole, device);
    if (!refused && layout == nullptr)
      refused = Error(Errc::invalid_argument, "root has to pass the layout");
    if (!refused && layout->ranks() != group.size())
      refused = Error(
          Errc::invalid_argument,
          fmt::format("the layout is of {} ranks, the group of {}", layout->ranks(), group.size()));
    if (!refused && layout->total() != whole.shape.rows())
      refused = Error(Errc::invalid_argument,
                      fmt::format("whole is {}, which has {} rows; the layout has {}",
                                  to_string(whole.shape), whole.shape.rows(), layout->total()));
    Said said{.refused = refused ? 1 : 0,
              .dtype = static_cast<std::int64_t>(whole.dtype),
              .ndim = static_cast<std::int64_t>(whole.shape.ndim())};
    std::ranges::copy(whole.shape.dims(), said.dims);
    std::memcpy(message.data(), &said, sizeof said);
    if (!refused) std::ranges::copy(layout->counts(), message.begin() + words);
  }
  internal::host_call(group,
                      {.kind = Operation::broadcast, .in = message, .out = message, .root = root},
                      options.call);
  Said said;
  std::memcpy(static_cast<void*>(&said), message.data(), sizeof said);
  if (refused)
    throw internal::gather_error(refused->code(), group, caller, group.rank(), refused->message());
  if (said.refused != 0)
    throw internal::gather_error(Errc::mismatch, group, caller, root,
                                 fmt::format("rank {} refused {}: see its error", root, caller));
  const RowLayout rows(std::span<const std::int64_t>(message).subspan(words));
  const Shape shape(
      std::span<const std::int64_t>(said.dims).first(static_cast<std::size_t>(said.ndim)));
  const auto mine = shape.with_rows(rows[group.rank()]);
  const auto dtype = static_cast<DType>(said.dtype);
  const auto in = at_root ? whole : ConstTensorView();
  Tensor out;
  make_or_refuse(group, {.kind = Operation::scatter, .root = root}, options.call, [&] {
    out = Tensor(memory_of(group, options), mine, dtype, options.call.stream);
  });
  group.scatter(in, out, root, rows, options.call);
  return out;
}

Tensor reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole,
                           const RowLayout& layout, ReduceOp op, const GatherOptions& options) {
  const auto mine = group.rank() < layout.ranks() ? layout[group.rank()] : 0;
  Tensor out;
  make_or_refuse(group, {.kind = Operation::reduce_scatter, .reduce = op}, options.call, [&] {
    out = Tensor(memory_of(group, options), whole.shape.with_rows(mine), whole.dtype,
                 options.call.stream);
  });
  group.reduce_scatter(whole, out, layout, op, options.call);
  return out;
}

std::vector<Tensor> gather_all_tensors(ProcessGroup& group, const ConstTensorView& local,
                                       const GatherOptions& options) {
  const Announcement said(
      group, {.caller = "gather_all_tensors", .arrays = {&local, 1}, .any_shape = true},
      options.call);
  const auto stream = options.call.stream;
  std::vector<Tensor> result;
  const auto allocate = [&] {
    for (int r = 0; r < group.size(); ++r)
      result.emplace_back(memory_of(group, options), said.shape(r, 0), local.dtype, stream);
  };
  if (said.complete()) {
    allocate();
    for (int r = 0; r < group.size(); ++r) {
      auto& to = result[static_cast<std::size_t>(r)];
      copy_rows(group, to.data(), said.data(r, 0), to.bytes(), stream);
    }
    return result;
  }
  // As elements in a row, whatever the shapes.
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) counts.push_back(said.shape(r, 0).numel());
  const RowLayout layout(counts);
  const ConstTensorView flat(local.data, local.dtype, {local.shape.numel()}, local.device);
  Tensor all;
  make_or_refuse(group, {.kind = Operation::all_gather}, options.call, [&] {
    allocate();
    all = Tensor(group.memory(), {layout.total()}, local.dtype, stream);
  });
  internal::gather_rows_by(options.algo, group, flat, all, layout, options.call);
  for (int r = 0; r < group.size(); ++r) {
    auto& to = result[static_cast<std::size_t>(r)];
    copy_rows(group, to.data(), rows_of(all.view(), layout.offset(r), layout[r]).data, to.bytes(),
              stream);
  }
  return result;
}

std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view local,
                                          const GatherOptions& options) {
  const ConstTensorView bytes(local.data(), DType::u8, {static_cast<std::int64_t>(local.size())});
  constexpr std::string_view caller = "all_gather_bytes";
  std::vector<std::string> result;
  GatherOptions mine = options;
  mine.layout = nullptr;
  mine.memory = nullptr;
  const auto all =
      internal::gather_host_arrays(group, {.caller = caller, .arrays = {&bytes, 1}}, mine);
  const auto* data = static_cast<const char*>(all.data[0].data());
  for (int r = 0; r < group.size(); ++r)
    result.emplace_back(data + all.layout.offset(r), static_cast<std::size_t>(all.layout[r]));
  return result;
}

}  // namespace tutti
