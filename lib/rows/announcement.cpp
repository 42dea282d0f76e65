#include "rows/announcement.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "group/record.hpp"
#include "group/validate.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal {
namespace {

constexpr std::uint32_t version = 0x74757402;
constexpr std::size_t caller_room = 32;
constexpr std::size_t agree_room = 512;
constexpr std::size_t text_room = 1024;
/// Of an announcement without the arrays: numbers and the caller, words, shapes or why not.
constexpr std::size_t head_room =
    64 + agree_room +
    std::max(Announcement::max_arrays * (8 + Shape::max_dims * sizeof(std::int64_t)), text_room);
/// Instead of how many bytes come along: they come in a second round.
constexpr std::uint64_t later = ~std::uint64_t{0};

/// Options that have to be equal. What does not fit is compared all the same.
std::string words_of(std::string_view agree) {
  if (agree.size() <= agree_room) return std::string(agree);
  Hash hash;
  hash.add(agree);
  return fmt::format("{}... (hash {:016x})", agree.substr(0, agree_room - 32), hash.value());
}

/// What has to be equal, in words: "all_gather_rows of f32 [*, 3]".
std::string describe(const Announcement::Message& message) {
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

/// @throws Error of any code when the bytes are no message.
Announcement::Message read(std::span<const std::byte> bytes) {
  Reader in(bytes, Errc::mismatch, "it");
  Announcement::Message message;
  message.version = in.u32();
  if (message.version != version) return message;
  message.refused = in.u8() != 0;
  message.caller = in.text();
  message.words = in.text();
  if (message.refused) return message;
  message.any_shape = in.u8() != 0;
  message.root = in.i32();
  const auto size = in.u64();
  message.along = size != later;
  const std::size_t arrays = in.u8();
  for (std::size_t i = 0; i < arrays; ++i) {
    message.dtypes.push_back(static_cast<DType>(in.u8()));
    if (static_cast<int>(message.dtypes[i]) >= dtype_count)
      failf(Errc::mismatch, "it has dtype {}", static_cast<int>(message.dtypes[i]));
    message.shapes.emplace_back(in.list());
  }
  const auto before = in.left();
  for (std::size_t i = 0; message.along && i < arrays; ++i)
    message.data.push_back(
        in.items(static_cast<std::uint64_t>(message.shapes[i].numel()), size_of(message.dtypes[i]))
            .data());
  if (message.along && before - in.left() != size)
    failf(Errc::mismatch, "it has {} bytes of arrays and says {}", before - in.left(), size);
  return message;
}

/// Which ranks said what, when they did not all say the same.
std::string differences(std::span<const std::string> said) {
  std::string text;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (std::ranges::find(said.first(r), said[r]) != said.first(r).end()) continue;
    std::vector<int> ranks;
    for (std::size_t other = r; other < said.size(); ++other)
      if (said[other] == said[r]) ranks.push_back(static_cast<int>(other));
    text += fmt::format("{} {}: {}; ", ranks.size() == 1 ? "rank" : "ranks", list_ranks(ranks),
                        said[r]);
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

Offer checked(Offer offer) {
  if (const auto check = std::exchange(offer.check, {}))
    offer.refused = refusal_of([&] { check(offer); });
  return offer;
}

Announcement::Announcement(ProcessGroup& group, const Offer& unchecked,
                           const CallOptions& options) {
  const auto offer = checked(unchecked);
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto device = offer.in_host_memory ? Device{} : group.memory().device();
  auto refused = offer.refused;
  if (!refused && offer.arrays.size() > max_arrays)
    refused = Error(Errc::invalid_argument, fmt::format("{} arrays at once; there may be {}",
                                                        offer.arrays.size(), max_arrays));
  if (!refused)
    refused = refusal_of([&] {
      for (const auto& array : offer.arrays) check_array("the array", array, device);
    });

  // The host does not look into arrays on a device, and there a second round costs less than W
  // messages of full length.
  const bool along = on_host(group) && group.supports(Operation::all_gather_bounded, DType::u8);
  // The same for every function, so that ranks that call different ones can say so.
  const std::size_t room = head_room + (along ? Offer::most : 0);
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(ranks * room);
  const auto slot = [&](std::size_t r) { return std::span(bytes_.get() + r * room, room); };

  Writer head;
  head.u32(version).u8(refused ? 1 : 0).text(offer.caller.substr(0, caller_room));
  bool inlined = false;
  if (refused) {
    head.text(refused->message().substr(0, text_room));
  } else {
    std::size_t bytes = 0;
    for (const auto& array : offer.arrays) bytes += array.bytes();
    // Everything or nothing: a rank that sends more in the second round sends all of it there.
    inlined = bytes == 0 || (along && bytes <= offer.small);
    head.text(words_of(offer.agree)).u8(offer.any_shape ? 1 : 0).i32(offer.root);
    head.u64(inlined ? bytes : later).u8(static_cast<std::uint8_t>(offer.arrays.size()));
    for (const auto& array : offer.arrays)
      head.u8(static_cast<std::uint8_t>(array.dtype)).list(array.shape.dims());
  }
  const auto own = slot(static_cast<std::size_t>(group.rank()));
  auto end = std::ranges::copy(head.bytes(), own.begin()).out;
  for (const auto& array : offer.arrays)
    if (inlined) end = std::copy_n(static_cast<const std::byte*>(array.data), array.bytes(), end);

  const auto as_bytes = [](std::span<std::byte> bytes) {
    return TensorView(bytes.data(), DType::u8, Shape::vector(std::ssize(bytes)));
  };
  const auto all = as_bytes({bytes_.get(), ranks * room});
  if (along) {
    call(group,
         {.kind = Operation::all_gather_bounded, .in = as_bytes({own.begin(), end}), .out = all},
         options);
  } else {
    std::fill(end, own.end(), std::byte{});
    host_call(group, {.kind = Operation::all_gather, .in = as_bytes(own), .out = all}, options, {},
              offer.caller);
  }

  if (refused) throw_refusal(*refused, group, offer.caller);
  const auto mismatch = [&](std::size_t r, const std::string& text) {
    return gather_error(Errc::mismatch, group, offer.caller, static_cast<int>(r), text);
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    if (const auto why = refusal_of([&] { messages_.push_back(read(slot(r))); }))
      throw mismatch(r, fmt::format("the message of rank {} cannot be read: {}; all ranks need the "
                                    "same version of the library",
                                    r, why->message()));
    const auto& message = messages_.back();
    if (message.version != version)
      throw mismatch(r, fmt::format("rank {} speaks another version: {:#x}, here {:#x}", r,
                                    message.version, version));
    if (message.refused)
      throw mismatch(r, fmt::format("rank {} refused {}: {}", r, message.caller, message.words));
    complete_ = complete_ && message.along;
  }
  std::vector<std::string> said;
  for (const auto& message : messages_) said.push_back(describe(message));
  if (std::ranges::find(said, false, [&](const auto& its) { return its == said[0]; }) != said.end())
    throw gather_error(Errc::mismatch, group, offer.caller, -1,
                       "ranks made different calls: " + differences(said) +
                           "every rank has to make the same call");
}

bool Announcement::within(std::size_t bytes) const {
  return std::ranges::all_of(messages_, [bytes](const Message& message) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < message.shapes.size(); ++i)
      sum += static_cast<std::size_t>(message.shapes[i].numel()) * size_of(message.dtypes[i]);
    return sum <= bytes;
  });
}

RowLayout Announcement::layout() const {
  std::vector<std::int64_t> counts;
  for (const auto& message : messages_) counts.push_back(message.shapes[0].rows());
  return RowLayout(counts);
}

}  // namespace tutti::internal
