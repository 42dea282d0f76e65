#include "rows/metadata_exchange.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/record.hpp"
#include "group/call.hpp"
#include "group/validate.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal {
namespace {

constexpr std::uint32_t version = 0x74757402;
constexpr std::size_t max_caller = 32;
constexpr std::size_t max_agree = 512;
constexpr std::size_t max_text = 1024;
/// Size of a message without its arrays: numbers, the caller's name, and either words and shapes or
/// the text of a refusal.
constexpr std::size_t header_bytes =
    64 + max_agree +
    std::max(MetadataExchange::max_arrays * (8 + Shape::max_dims * sizeof(std::int64_t)), max_text);
/// Stands for the number of inlined bytes if the arrays follow in a second round.
constexpr std::uint64_t later = ~std::uint64_t{0};

/// Returns GatherRequest::agree. A long text is cut, and a hash of the whole is added.
std::string words_of(std::string_view agree) {
  if (agree.size() <= max_agree) return std::string(agree);
  Hash hash;
  hash.add(agree);
  return fmt::format("{}... (hash {:016x})", agree.substr(0, max_agree - 32), hash.value());
}

/// Describes the properties that must be equal: "all_gather_rows of f32 [*, 3]".
std::string describe(const MetadataExchange::Message& message) {
  std::string text(message.caller);
  if (message.root >= 0) text += fmt::format(" to root {}", message.root);
  for (std::size_t i = 0; i < message.shapes.size(); ++i) {
    const auto& shape = message.shapes[i];
    text += fmt::format("{} {} ", i == 0 ? " of" : ",", name_of(message.dtypes[i]));
    if (message.any_shape)
      text += fmt::format("with {} dimensions", shape.ndim());
    else  // A 0-dimensional array is one row.
      text +=
          fmt::format("[*{}{}]", shape.ndim() > 1 ? ", " : "", fmt::join(shape.row_dims(), ", "));
  }
  if (!message.words.empty()) text += fmt::format(" with {}", message.words);
  return text;
}

/// Parses a message. Reads only the version of a message of another version. @throws Error of any
/// code if the bytes are not a message.
MetadataExchange::Message read(std::span<const std::byte> bytes) {
  Reader in(bytes, Errc::mismatch, "the message");
  MetadataExchange::Message message;
  message.version = in.u32();
  if (message.version != version) return message;
  message.refused = in.u8() != 0;
  message.caller = in.text();
  message.words = in.text();
  if (message.refused) return message;
  message.any_shape = in.u8() != 0;
  message.root = in.i32();
  const auto size = in.u64();
  message.inlined = size != later;
  const std::size_t arrays = in.u8();
  for (std::size_t i = 0; i < arrays; ++i) {
    message.dtypes.push_back(static_cast<DType>(in.u8()));
    if (static_cast<int>(message.dtypes[i]) >= dtype_count)
      failf(Errc::mismatch, "the message has the unknown dtype {}",
            static_cast<int>(message.dtypes[i]));
    message.shapes.emplace_back(in.list());
  }
  const auto before = in.left();
  for (std::size_t i = 0; message.inlined && i < arrays; ++i)
    message.data.push_back(
        in.items(static_cast<std::uint64_t>(message.shapes[i].numel()), size_of(message.dtypes[i]))
            .data());
  if (message.inlined && before - in.left() != size)
    failf(Errc::mismatch, "the message has {} bytes of arrays but announces {}", before - in.left(),
          size);
  return message;
}

/// Returns each different text with the ranks that sent it.
std::string differences(std::span<const std::string> calls) {
  std::string text;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    if (std::ranges::find(calls.first(r), calls[r]) != calls.first(r).end()) continue;
    std::vector<int> ranks;
    for (std::size_t other = r; other < calls.size(); ++other)
      if (calls[other] == calls[r]) ranks.push_back(static_cast<int>(other));
    text += fmt::format("{} {}: {}; ", ranks.size() == 1 ? "rank" : "ranks", list_ranks(ranks),
                        calls[r]);
  }
  return text;
}

}  // namespace

Error gather_error(Errc code, ProcessGroup& group, std::string_view caller, int rank,
                   const std::string& message) {
  return {code, message, {.group = group.name(), .operation = std::string(caller), .rank = rank}};
}

void throw_refusal(const Error& why, ProcessGroup& group, std::string_view caller) {
  if (!why.where().operation.empty()) throw Error(why);
  throw gather_error(why.code(), group, caller, group.rank(), why.message());
}

GatherRequest checked(GatherRequest request) {
  if (const auto check = std::exchange(request.check, {}))
    request.refused = refusal_of([&] { check(request); });
  return request;
}

MetadataExchange::MetadataExchange(ProcessGroup& group, const GatherRequest& unchecked,
                                   const CallOptions& options) {
  const auto request = checked(unchecked);
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto device = request.in_host_memory ? Device{} : group.memory().device();
  auto refused = request.refused;
  if (!refused && request.arrays.size() > max_arrays)
    refused =
        Error(Errc::invalid_argument, fmt::format("{} arrays at once; at most {} are supported",
                                                  request.arrays.size(), max_arrays));
  if (!refused)
    refused = refusal_of([&] {
      for (const auto& array : request.arrays) check_array("the array", array, device);
    });

  // Inlines only if the group works on the host and has all_gather_bounded: a plain all_gather
  // sends W slots with room for the largest inlined arrays, which costs more than a second round,
  // and the host cannot read arrays on a device.
  const bool can_inline =
      on_host(group) && group.supports(Operation::all_gather_bounded, DType::u8);
  // The size is the same for every function, so that ranks that call different functions can
  // exchange messages.
  const std::size_t slot_bytes = header_bytes + (can_inline ? GatherRequest::most : 0);
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(ranks * slot_bytes);
  const auto slot = [&](std::size_t r) {
    return std::span(bytes_.get() + r * slot_bytes, slot_bytes);
  };

  Writer head;
  head.u32(version).u8(refused ? 1 : 0).text(request.caller.substr(0, max_caller));
  bool inlined = false;
  if (refused) {
    head.text(refused->message().substr(0, max_text));
  } else {
    std::size_t bytes = 0;
    for (const auto& array : request.arrays) bytes += array.bytes();
    // A rank inlines all arrays or none. The second round, if one is needed, sends all of them.
    inlined = bytes == 0 || (can_inline && bytes <= request.small);
    head.text(words_of(request.agree)).u8(request.any_shape ? 1 : 0).i32(request.root);
    head.u64(inlined ? bytes : later).u8(static_cast<std::uint8_t>(request.arrays.size()));
    for (const auto& array : request.arrays)
      head.u8(static_cast<std::uint8_t>(array.dtype)).list(array.shape.dims());
  }
  const auto own = slot(static_cast<std::size_t>(group.rank()));
  auto end = std::ranges::copy(head.bytes(), own.begin()).out;
  for (const auto& array : request.arrays)
    if (inlined) end = std::copy_n(static_cast<const std::byte*>(array.data), array.bytes(), end);

  const auto as_bytes = [](std::span<std::byte> bytes) {
    return TensorView(bytes.data(), DType::u8, Shape::vector(std::ssize(bytes)));
  };
  const auto all = as_bytes({bytes_.get(), ranks * slot_bytes});
  if (can_inline) {
    call(group,
         {.kind = Operation::all_gather_bounded, .in = as_bytes({own.begin(), end}), .out = all},
         options);
  } else {
    std::fill(end, own.end(), std::byte{});
    host_call(group, {.kind = Operation::all_gather, .in = as_bytes(own), .out = all}, options, {},
              request.caller);
  }

  if (refused) throw_refusal(*refused, group, request.caller);
  const auto mismatch = [&](std::size_t r, const std::string& text) {
    return gather_error(Errc::mismatch, group, request.caller, static_cast<int>(r), text);
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto why = refusal_of([&] { messages_.push_back(read(slot(r))); });
    if (why && why->code() == Errc::resource_exhausted) throw Error(*why);
    if (why)
      throw mismatch(r, fmt::format("the message of rank {} cannot be read: {}; all ranks need the "
                                    "same version of the library",
                                    r, why->message()));
    const auto& message = messages_.back();
    if (message.version != version)
      throw mismatch(r, fmt::format("rank {} sent version {:#x} of the message, this rank {:#x}; "
                                    "all ranks need the same version of the library",
                                    r, message.version, version));
    if (message.refused)
      throw mismatch(r, fmt::format("rank {} refused {}: {}", r, message.caller, message.words));
    complete_ = complete_ && message.inlined;
  }
  std::vector<std::string> calls;
  for (const auto& message : messages_) calls.push_back(describe(message));
  if (std::ranges::find(calls, false, [&](const auto& its) { return its == calls[0]; }) !=
      calls.end())
    throw gather_error(Errc::mismatch, group, request.caller, -1,
                       "ranks made different calls: " + differences(calls) +
                           "every rank has to make the same call");
}

bool MetadataExchange::within(std::size_t bytes) const {
  return std::ranges::all_of(messages_, [bytes](const Message& message) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < message.shapes.size(); ++i)
      sum += static_cast<std::size_t>(message.shapes[i].numel()) * size_of(message.dtypes[i]);
    return sum <= bytes;
  });
}

RowLayout MetadataExchange::rows() const {
  std::vector<std::int64_t> counts;
  for (const auto& message : messages_) counts.push_back(message.shapes[0].rows());
  return RowLayout(counts);
}

}  // namespace tutti::internal
