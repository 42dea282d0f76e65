#include <tutti/gather.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "group/validate.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/metadata_exchange.hpp"
#include "rows/row_views.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// Copies one array of every rank from the received messages to `out`.
void copy_gathered(ProcessGroup& group, const MetadataExchange& metadata, std::size_t array,
                   const TensorView& out, const RowLayout& rows, Stream stream) {
  for (int r = 0; r < group.size(); ++r) {
    const auto to = rows_of(out, rows.offset(r), rows[r]);
    copy_rows(group, to.data, metadata.data(r, array), to.bytes(), stream);
  }
}

}  // namespace

void check_rows(const ProcessGroup& group, const ConstTensorView& local, const RowLayout& rows) {
  if (rows.ranks() != group.size())
    failf(Errc::invalid_argument, "rows has {} entries; the world size is {}", rows.ranks(),
          group.size());
  if (rows[group.rank()] != local.shape.rows())
    failf(Errc::invalid_argument,
          "local is {}, which has {} rows; the argument rows gives {} for rank {}",
          to_string(local.shape), local.shape.rows(), rows[group.rank()], group.rank());
}

GatheredArrays gather_arrays(ProcessGroup& group, const GatherRequest& unchecked,
                             const RowLayout& rows, const CallOptions& options, Work* work) try {
  auto request = checked(unchecked);
  std::vector<ConstTensorView> locals;
  for (const auto& array : request.arrays) locals.push_back(as_rows(array));
  request.arrays = locals;
  request.check = [&](GatherRequest& mine) {
    if (mine.refused) throw Error(*mine.refused);
    if (locals.empty()) failf(Errc::invalid_argument, "no arrays were passed; pass at least one");
    for (const auto& local : locals)
      if (local.shape.rows() != locals[0].shape.rows())
        failf(Errc::invalid_argument,
              "arrays of one gather have {} and {} rows; they must have the same number",
              locals[0].shape.rows(), local.shape.rows());
  };
  request = checked(std::move(request));

  GatheredArrays result;
  const auto stream = options.stream;
  auto& memory =
      request.in_host_memory && !on_host(group) ? host_memory() : memory_of(group, options);
  const auto allocate = [&] {
    for (const auto& local : locals)
      result.data.emplace_back(memory, local.shape.with_rows(result.rows.total()), local.dtype,
                               stream);
  };
  if (rows.ranks() != 0) {
    result.rows = rows;
  } else {
    const MetadataExchange metadata(group, request, options);
    result.rows = metadata.rows();
    if (metadata.complete()) {
      allocate();
      for (std::size_t i = 0; i < locals.size(); ++i)
        copy_gathered(group, metadata, i, result.data[i], result.rows, stream);
      return result;
    }
    if (request.only_small && !metadata.within(request.small)) return result;
  }
  // The first call allocates all results and publishes this rank's refusal.
  const auto gather = [&](std::size_t i) {
    Op op{.kind = Operation::all_gather, .rows = result.rows};
    if (i < locals.size()) op.in = locals[i];
    const auto prepare = [&](Op& mine) {
      if (i == 0 && request.refused) throw Error(*request.refused);
      if (i == 0) check_rows(group, locals[0], result.rows);
      if (i == 0) allocate();
      mine.out = result.data[i];
    };
    if (request.in_host_memory) return host_call(group, op, options, prepare, request.caller);
    call(group, op, options, prepare, request.caller, work);
  };
  gather(0);
  for (std::size_t i = 1; i < locals.size(); ++i) gather(i);
  return result;
} catch (...) {
  end_calls(group);
}

GatheredArrays gather_host_arrays(ProcessGroup& group, GatherRequest request,
                                  const CallOptions& options) {
  request.in_host_memory = true;
  return gather_arrays(group, request, {}, options);
}

GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& array, int root,
                         const RowLayout& rows, const CallOptions& options,
                         const CallerCheck& check, Work* work) try {
  const auto local = as_rows(array);
  GatheredRows result;
  std::optional<MetadataExchange> metadata;
  if (rows.ranks() == 0) {
    const auto check_all = [&](GatherRequest&) {
      if (check) check();
      if (root < 0 || root >= group.size())
        internal::failf(Errc::invalid_argument, "root is {}; this group has ranks 0 to {}", root,
                        group.size() - 1);
    };
    // The limit is low, because inlined rows go to all ranks and not only to root.
    metadata.emplace(group,
                     GatherRequest{.caller = "gather_rows",
                                   .arrays = {&local, 1},
                                   .root = root,
                                   .small = 4096,
                                   .check = check_all},
                     options);
  }
  result.rows = metadata ? metadata->rows() : rows;
  const bool at_root = group.rank() == root;
  const auto allocate = [&] {
    result.data = Tensor(memory_of(group, options),
                         at_root ? local.shape.with_rows(result.rows.total()) : Shape{0},
                         local.dtype, options.stream);
  };
  if (metadata && metadata->complete()) {
    allocate();
    if (at_root) copy_gathered(group, *metadata, 0, result.data, result.rows, options.stream);
    return result;
  }
  const auto prepare = [&](Op& op) {
    if (!metadata && check) check();
    internal::check_rows(group, local, result.rows);
    allocate();
    op.out = result.data;
  };
  call(group, {.kind = Operation::gather, .in = local, .rows = result.rows, .root = root}, options,
       prepare, "gather_rows", work);
  return result;
} catch (...) {
  end_calls(group);
}

Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                    int root, const CallOptions& options, const CallerCheck& check) try {
  constexpr std::string_view caller = "scatter_rows";
  const bool at_root = group.rank() == root;
  // Root's header: a refusal flag, dtype and shape of the rows, and the number of rows of every
  // rank.
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::byte> message(3 + (Shape::max_dims + ranks) * sizeof(std::int64_t));
  std::optional<Error> refused;
  if (at_root) {
    refused = internal::refusal_of([&] {
      if (check) check();
      check_array("the array", whole, group.memory().device());
      if (rows.ranks() != group.size())
        internal::failf(Errc::invalid_argument, "rows has {} entries; the world size is {}",
                        rows.ranks(), group.size());
      if (rows.total() != whole.shape.rows())
        internal::failf(Errc::invalid_argument,
                        "whole is {}, which has {} rows; the argument rows has {}",
                        to_string(whole.shape), whole.shape.rows(), rows.total());
    });
    internal::Writer out;
    out.u8(refused ? 1 : 0).u8(static_cast<std::uint8_t>(whole.dtype));
    out.u8(static_cast<std::uint8_t>(whole.shape.ndim()));
    for (std::size_t d = 0; d < Shape::max_dims; ++d)
      out.i64(d < whole.shape.ndim() ? whole.shape.dims()[d] : 0);
    if (!refused)
      for (const auto count : rows.counts()) out.i64(count);
    std::ranges::copy(out.bytes(), message.begin());
  }
  internal::host_call(
      group, {.kind = Operation::broadcast, .in = message, .out = message, .root = root}, options);
  internal::Reader in(message, Errc::mismatch, "the message of scatter_rows");
  if (refused) throw_refusal(*refused, group, caller);
  if (in.u8() != 0)
    throw internal::gather_error(Errc::mismatch, group, caller, root,
                                 fmt::format("rank {} refused {}: see its error", root, caller));
  const auto dtype = static_cast<DType>(in.u8());
  const std::size_t ndim = in.u8();
  const auto dims = in.numbers<std::int64_t>(Shape::max_dims);
  const RowLayout received(in.numbers<std::int64_t>(ranks));
  if (static_cast<int>(dtype) >= dtype_count || ndim > dims.size())
    throw internal::gather_error(
        Errc::mismatch, group, caller, root,
        fmt::format("rank {} sent a damaged description: {} dimensions, dtype {}", root, ndim,
                    static_cast<int>(dtype)));
  const Shape shape(std::span<const std::int64_t>(dims).first(ndim));
  const auto mine = shape.with_rows(received[group.rank()]);
  Tensor out;
  const auto prepare = [&](Op& op) {
    out = Tensor(memory_of(group, options), mine, dtype, options.stream);
    op.out = out;
  };
  call(group,
       {.kind = Operation::scatter,
        .in = at_root ? whole : ConstTensorView(),
        .rows = received,
        .root = root},
       options, prepare, caller);
  return out;
} catch (...) {
  end_calls(group);
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {
namespace {

using internal::as_rows;
using internal::call;
using internal::copy_rows;
using internal::memory_of;
using internal::MetadataExchange;
using internal::rows_of;

}  // namespace

GatheredRows all_gather_rows(ProcessGroup& group, const ConstTensorView& local,
                             const RowLayout& rows, const CallOptions& options) {
  auto all = internal::gather_arrays(group, {.caller = "all_gather_rows", .arrays = {&local, 1}},
                                     rows, options);
  return {std::move(all.data[0]), std::move(all.rows)};
}

Pending<GatheredRows> all_gather_rows_async(ProcessGroup& group, const ConstTensorView& local,
                                            const RowLayout& rows, const CallOptions& options) {
  Work work;
  auto all = internal::gather_arrays(group, {.caller = "all_gather_rows", .arrays = {&local, 1}},
                                     rows, options, &work);
  return {{std::move(all.data[0]), std::move(all.rows)}, std::move(work)};
}

GatheredArrays all_gather_rows(ProcessGroup& group, std::span<const ConstTensorView> locals,
                               const RowLayout& rows, const CallOptions& options) {
  return internal::gather_arrays(group, {.caller = "all_gather_rows", .arrays = locals}, rows,
                                 options);
}

void all_gather_rows(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
                     const RowLayout& rows, const CallOptions& options) {
  group.all_gather(as_rows(local), out, rows, options);
}

GatheredRows gather_rows(ProcessGroup& group, const ConstTensorView& local, int root,
                         const RowLayout& rows, const CallOptions& options) {
  return internal::gather_rows(group, local, root, rows, options, {});
}

Pending<GatheredRows> gather_rows_async(ProcessGroup& group, const ConstTensorView& local, int root,
                                        const RowLayout& rows, const CallOptions& options) {
  Work work;
  auto all = internal::gather_rows(group, local, root, rows, options, {}, &work);
  return {std::move(all), std::move(work)};
}

Tensor scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                    int root, const CallOptions& options) {
  return internal::scatter_rows(group, whole, rows, root, options, {});
}

namespace {

Tensor reduce_scatter(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                      ReduceOp op, const CallOptions& options, Work* work) try {
  const auto mine = group.rank() < rows.ranks() ? rows[group.rank()] : 0;
  Tensor out;
  const auto prepare = [&](Op& call) {
    out =
        Tensor(memory_of(group, options), whole.shape.with_rows(mine), whole.dtype, options.stream);
    call.out = out;
  };
  call(group, {.kind = Operation::reduce_scatter, .in = whole, .rows = rows, .reduce = op}, options,
       prepare, "reduce_scatter_rows", work);
  return out;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace

Tensor reduce_scatter_rows(ProcessGroup& group, const ConstTensorView& whole, const RowLayout& rows,
                           ReduceOp op, const CallOptions& options) {
  return reduce_scatter(group, whole, rows, op, options, nullptr);
}

Pending<Tensor> reduce_scatter_rows_async(ProcessGroup& group, const ConstTensorView& whole,
                                          const RowLayout& rows, ReduceOp op,
                                          const CallOptions& options) {
  Work work;
  auto out = reduce_scatter(group, whole, rows, op, options, &work);
  return {std::move(out), std::move(work)};
}

std::vector<Tensor> gather_all_tensors(ProcessGroup& group, const ConstTensorView& local,
                                       const CallOptions& options) try {
  const MetadataExchange metadata(
      group, {.caller = "gather_all_tensors", .arrays = {&local, 1}, .any_shape = true}, options);
  const auto stream = options.stream;
  std::vector<Tensor> result;
  const auto allocate = [&] {
    for (int r = 0; r < group.size(); ++r)
      result.emplace_back(memory_of(group, options), metadata.shape(r, 0), local.dtype, stream);
  };
  if (metadata.complete()) {
    allocate();
    for (int r = 0; r < group.size(); ++r) {
      auto& to = result[static_cast<std::size_t>(r)];
      copy_rows(group, to.data(), metadata.data(r, 0), to.bytes(), stream);
    }
    return result;
  }
  // Gathers each array as a list of elements, because shapes may differ.
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) counts.push_back(metadata.shape(r, 0).numel());
  const RowLayout rows(counts);
  const ConstTensorView flat(local.data, local.dtype, {local.shape.numel()}, local.device);
  Tensor all;
  const auto prepare = [&](Op& op) {
    allocate();
    all = Tensor(group.memory(), {rows.total()}, local.dtype, stream);
    op.out = all;
  };
  call(group, {.kind = Operation::all_gather, .in = flat, .rows = rows}, options, prepare,
       "gather_all_tensors");
  for (int r = 0; r < group.size(); ++r) {
    auto& to = result[static_cast<std::size_t>(r)];
    copy_rows(group, to.data(), rows_of(all.view(), rows.offset(r), rows[r]).data, to.bytes(),
              stream);
  }
  return result;
} catch (...) {
  internal::end_calls(group);
}

std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view local,
                                          const CallOptions& options) try {
  const ConstTensorView bytes(local.data(), DType::u8, {static_cast<std::int64_t>(local.size())});
  constexpr std::string_view caller = "all_gather_bytes";
  std::vector<std::string> result;
  const auto all =
      internal::gather_host_arrays(group, {.caller = caller, .arrays = {&bytes, 1}}, options);
  const auto* data = static_cast<const char*>(all.data[0].data());
  for (int r = 0; r < group.size(); ++r)
    result.emplace_back(data + all.rows.offset(r), static_cast<std::size_t>(all.rows[r]));
  return result;
} catch (...) {
  internal::end_calls(group);
}

void broadcast_bytes(ProcessGroup& group, std::string& bytes, int root,
                     const CallOptions& options) try {
  constexpr std::size_t message_bytes = 1024;  // The length, then the string if it fits.
  constexpr std::size_t small = message_bytes - sizeof(std::uint64_t);
  const bool at_root = group.rank() == root;
  std::vector<std::byte> message(message_bytes);
  if (at_root) {
    internal::Writer out;
    out.u64(bytes.size());
    const auto end = std::ranges::copy(out.bytes(), message.begin()).out;
    const auto data = std::as_bytes(std::span(bytes));
    if (data.size() <= small) std::ranges::copy(data, end);
  }
  internal::host_call(group,
                      {.kind = Operation::broadcast, .in = message, .out = message, .root = root},
                      options, {}, "broadcast_bytes");
  internal::Reader in(message, Errc::mismatch, "the message of broadcast_bytes");
  const auto size = in.u64();
  if (size <= small) {
    const auto data = in.items(size, 1);
    if (!at_root) bytes.assign(reinterpret_cast<const char*>(data.data()), data.size());
    return;
  }
  std::string received;
  const auto prepare = [&](Op& op) {
    if (!at_root) received.resize(size);
    auto& whole = at_root ? bytes : received;
    op.out = {whole.data(), DType::u8, Shape::vector(std::ssize(whole))};
    op.in = op.out;
  };
  internal::host_call(group, {.kind = Operation::broadcast, .root = root}, options, prepare,
                      "broadcast_bytes");
  if (!at_root) bytes = std::move(received);
} catch (...) {
  internal::end_calls(group);
}

}  // namespace tutti
