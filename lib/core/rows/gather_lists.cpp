#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "group/call.hpp"
#include "group/validate.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/row_views.hpp"
#include "values/bytes.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

using internal::copy_rows;

constexpr std::string_view caller = "gather_all_tensors";

std::int64_t bytes_of(std::span<const ConstTensorView> arrays) {
  std::int64_t sum = 0;
  for (const auto& array : arrays) sum += static_cast<std::int64_t>(array.bytes());
  return sum;
}

/// Writes the message of this rank: a flag, the number of arrays, dtype and dimensions of each, and
/// the elements if the flag is 1. @throws Error if an array is invalid.
internal::Writer message_of(ProcessGroup& group, std::span<const ConstTensorView> arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i)
    internal::check_array(fmt::format("locals[{}]", i).c_str(), arrays[i], group.memory().device());
  internal::Writer head;
  head.u32(static_cast<std::uint32_t>(arrays.size()));
  for (const auto& array : arrays)
    head.u8(static_cast<std::uint8_t>(array.dtype)).list(array.shape.dims());
  // The host cannot read the elements on a device. Peers read the flag, so each rank decides alone.
  const auto bytes = static_cast<std::size_t>(bytes_of(arrays));
  const bool inlined = internal::on_host(group) && bytes < internal::GatherRequest::most &&
                       1 + head.bytes().size() + bytes <= internal::GatherRequest::most;
  internal::Writer message;
  message.u8(inlined ? 1 : 0).raw(head.bytes());
  for (const auto& array : arrays)
    if (inlined) message.raw({static_cast<const std::byte*>(array.data), array.bytes()});
  return message;
}

/// The arrays of one rank. Their addresses are set once the elements have arrived.
struct List {
  std::vector<ConstTensorView> arrays{};
  std::int64_t later = 0;  ///< Bytes of the elements if they are not in the message.

  void point_into(const void* elements) {
    const auto* next = static_cast<const std::byte*>(elements);
    for (auto& array : arrays)
      next = static_cast<const std::byte*>(array.data = next) + array.bytes();
  }
};

List read(std::span<const std::byte> message) {
  internal::Reader in(message, Errc::mismatch, "the message of gather_all_tensors");
  const bool inlined = in.u8() != 0;
  List list;
  for (auto left = in.u32(); left > 0; --left) {
    const auto dtype = static_cast<DType>(in.u8());
    list.arrays.emplace_back(nullptr, dtype, Shape(in.list()));
  }
  const auto bytes = bytes_of(list.arrays);
  if (inlined)
    list.point_into(in.raw(static_cast<std::uint64_t>(bytes)).data());
  else
    list.later = bytes;
  return list;
}

}  // namespace

std::vector<std::vector<Tensor>> gather_all_tensors(ProcessGroup& group,
                                                    std::span<const ConstTensorView> locals,
                                                    const CallOptions& options) try {
  const auto stream = options.stream;
  internal::Writer message;
  ConstTensorView bytes;
  const auto check = [&](internal::GatherRequest& request) {
    message = message_of(group, locals);
    bytes = ConstTensorView(message.bytes());
    request.arrays = {&bytes, 1};
  };
  const auto received = internal::gather_host_arrays(
      group, {.caller = caller, .check = check, .agree = "a list of arrays"}, options);
  std::vector<List> lists;
  std::vector<std::int64_t> later;
  for (int r = 0; r < group.size(); ++r) {
    lists.push_back(
        read({static_cast<const std::byte*>(received.data[0].data()) + received.rows.offset(r),
              static_cast<std::size_t>(received.rows[r])}));
    later.push_back(lists.back().later);
  }

  std::vector<std::vector<Tensor>> result(lists.size());
  const auto allocate = [&] {
    for (std::size_t r = 0; r < lists.size(); ++r)
      for (const auto& array : lists[r].arrays)
        result[r].emplace_back(internal::memory_of(group, options), array.shape, array.dtype,
                               stream);
  };
  const RowLayout rows(later);
  Tensor all;
  if (rows.total() == 0) {
    allocate();
  } else {
    const auto prepare = [&](Op& op) {
      allocate();
      all = Tensor(group.memory(), {rows.total()}, DType::u8, stream);
      const auto mine =
          internal::rows_of(all.view(), rows.offset(group.rank()), rows[group.rank()]);
      auto* next = static_cast<std::byte*>(mine.data);
      for (const auto& array : locals) {
        if (mine.bytes() != 0) copy_rows(group, next, array.data, array.bytes(), stream);
        next += array.bytes();
      }
      op.in = mine;
      op.out = all;
    };
    internal::call(group,
                   {.kind = Operation::all_gather,
                    .in = ConstTensorView(nullptr, DType::u8, {0}),
                    .rows = rows},
                   options, prepare, caller);
    for (std::size_t r = 0; r < lists.size(); ++r)
      if (later[r] != 0)
        lists[r].point_into(static_cast<const std::byte*>(all.data()) +
                            rows.offset(static_cast<int>(r)));
  }
  for (std::size_t r = 0; r < lists.size(); ++r)
    for (std::size_t i = 0; i < result[r].size(); ++i)
      copy_rows(group, result[r][i].data(), lists[r].arrays[i].data, result[r][i].bytes(), stream);
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace tutti
