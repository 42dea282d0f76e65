#include "rows/announcement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "group/record.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal {
namespace {

struct Header {
  static constexpr std::uint32_t version = 0x74757401;
  std::uint32_t format = version;
  std::uint32_t refused = 0;  ///< The bytes behind the header are then why.
  std::uint32_t arrays = 0;
  std::uint32_t any_shape = 0;
  std::int32_t root = -1;
  std::uint32_t words = 0;  ///< Bytes of text behind the header: Offer::agree.
  std::uint64_t bytes = 0;  ///< Of the arrays, in this message.
  std::array<char, 32> caller{};
};
struct Described {
  std::uint32_t dtype = 0;
  std::uint32_t ndim = 0;
  std::array<std::int64_t, Shape::max_dims> dims{};
};
static_assert(sizeof(Header) == 64 && sizeof(Described) == 72);

constexpr std::size_t text_room = 1024;
constexpr std::size_t agree_room = 512;

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Writes one message where it is sent from.
class SlotWriter {
 public:
  explicit SlotWriter(std::byte* to) : begin_(to), at_(to) {}
  void add(const void* data, std::size_t bytes) {
    if (bytes != 0) std::memcpy(at_, data, bytes);
    at_ += bytes;
  }
  std::int64_t size() const { return at_ - begin_; }

 private:
  std::byte* begin_;
  std::byte* at_;
};

std::string_view caller_of(const Header& header) {
  return {header.caller.data(), ::strnlen(header.caller.data(), header.caller.size())};
}

/// What has to be equal, in words: "all_gather_rows of f32 [*, 3]".
std::string describe(const Header& header, std::span<const Described> arrays) {
  std::string text(caller_of(header));
  if (header.root >= 0) text += fmt::format(" to root {}", header.root);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto& a = arrays[i];
    text += fmt::format("{} {} ", i == 0 ? " of" : ",", name_of(static_cast<DType>(a.dtype)));
    if (header.any_shape != 0) {
      text += fmt::format("with {} dimensions", a.ndim);
      continue;
    }
    text += "[*";  // A 0-dimensional array is one row.
    for (std::uint32_t d = 1; d < a.ndim; ++d) text += fmt::format(", {}", a.dims[d]);
    text += ']';
  }
  return text;
}

std::string_view text_of(const std::byte* message, const Header& header) {
  return {reinterpret_cast<const char*>(message + sizeof header),
          std::min<std::size_t>(header.bytes, text_room)};
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

std::optional<Error> unfit(const ConstTensorView& array, const Device& device) {
  if (static_cast<int>(array.dtype) >= dtype_count)
    return Error(Errc::invalid_argument, fmt::format("dtype {} is unknown; there are {}",
                                                     static_cast<int>(array.dtype), dtype_count));
  if (array.shape.numel() != 0 && array.data == nullptr)
    return Error(Errc::invalid_argument,
                 fmt::format("the array is null, but {} {} has elements; pass the array's address",
                             name_of(array.dtype), to_string(array.shape)));
  if (array.shape.numel() != 0 && !(array.device == device))
    return Error(Errc::invalid_argument,
                 fmt::format("the array is on {}, but this group works on {}",
                             to_string(array.device), to_string(device)));
  return std::nullopt;
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
  const auto device = group.memory().device();
  auto refused = offer.refused;
  if (!refused && offer.arrays.size() > max_arrays)
    refused = Error(Errc::invalid_argument, fmt::format("{} arrays at once; there may be {}",
                                                        offer.arrays.size(), max_arrays));
  for (const auto& array : offer.arrays)
    if (!refused) refused = unfit(array, device);

  // The host does not look into arrays on a device, and there a second round costs less than W
  // messages of full length.
  const bool along = on_host(group) && group.supports(Operation::all_gather_bounded, DType::u8);
  // The same for every function, so that ranks that call different ones can say so.
  const std::size_t room = sizeof(Header) + agree_room +
                           std::max(max_arrays * sizeof(Described), text_room) +
                           (along ? Offer::most : 0);
  messages_ = std::make_unique_for_overwrite<std::byte[]>(ranks * room);

  Header header{.root = offer.root};
  std::ranges::copy(offer.caller.substr(0, header.caller.size() - 1), header.caller.begin());
  SlotWriter writer(messages_.get() + static_cast<std::size_t>(group.rank()) * room);
  if (refused) {
    const auto text = refused->message().substr(0, text_room);
    header.refused = 1;
    header.bytes = text.size();
    writer.add(&header, sizeof header);
    writer.add(text.data(), text.size());
  } else {
    std::size_t bytes = 0;
    for (const auto& array : offer.arrays) bytes += array.bytes();
    // Everything or nothing: a rank that sends more in the second round sends all of it there.
    header.bytes = along && bytes <= offer.small ? bytes : 0;
    if (bytes != 0 && header.bytes == 0) header.bytes = ~std::uint64_t{0};
    header.arrays = static_cast<std::uint32_t>(offer.arrays.size());
    header.any_shape = offer.any_shape ? 1 : 0;
    std::string words(offer.agree);
    if (words.size() > agree_room) {  // What does not fit is compared all the same.
      Hash hash;
      hash.add(offer.agree);
      words = fmt::format("{}... (hash {:016x})", words.substr(0, agree_room - 32), hash.value());
    }
    header.words = static_cast<std::uint32_t>(words.size());
    writer.add(&header, sizeof header);
    writer.add(words.data(), words.size());
    for (const auto& array : offer.arrays) {
      Described described{static_cast<std::uint32_t>(array.dtype),
                          static_cast<std::uint32_t>(array.shape.ndim())};
      std::ranges::copy(array.shape.dims(), described.dims.begin());
      writer.add(&described, sizeof described);
    }
    if (header.bytes == bytes)
      for (const auto& array : offer.arrays) writer.add(array.data, array.bytes());
  }

  const auto own = messages_.get() + static_cast<std::size_t>(group.rank()) * room;
  const auto as_bytes = [](std::byte* data, std::size_t n) {
    return TensorView(data, DType::u8, Shape::vector(static_cast<std::int64_t>(n)));
  };
  const auto all = as_bytes(messages_.get(), ranks * room);
  const auto length = static_cast<std::size_t>(writer.size());
  if (along) {
    call(group, {.kind = Operation::all_gather_bounded, .in = as_bytes(own, length), .out = all},
         options);
  } else {
    std::memset(own + length, 0, room - length);
    host_call(group, {.kind = Operation::all_gather, .in = as_bytes(own, room), .out = all},
              options, {}, offer.caller);
  }

  if (refused) throw_refusal(*refused, group, offer.caller);
  const auto unreadable = [&](std::size_t r) {
    return gather_error(Errc::mismatch, group, offer.caller, static_cast<int>(r),
                        fmt::format("the message of rank {} cannot be read; all ranks need the "
                                    "same version of the library",
                                    r));
  };
  std::vector<std::string> said(ranks);
  bool agree = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto* message = messages_.get() + r * room;
    const auto its = load<Header>(message);
    if (its.format != Header::version)
      throw gather_error(Errc::mismatch, group, offer.caller, static_cast<int>(r),
                         fmt::format("rank {} speaks another version: {:#x}, here {:#x}", r,
                                     its.format, Header::version));
    if (its.refused == 0) continue;
    throw gather_error(
        Errc::mismatch, group, offer.caller, static_cast<int>(r),
        fmt::format("rank {} refused {}: {}", r, caller_of(its), text_of(message, its)));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto* at = messages_.get() + r * room;
    const auto its = load<Header>(at);
    at += sizeof its;
    const std::string_view words(reinterpret_cast<const char*>(at),
                                 std::min<std::size_t>(its.words, agree_room));
    at += words.size();
    std::vector<Described> arrays(std::min<std::size_t>(its.arrays, max_arrays));
    for (auto& array : arrays) {
      array = load<Described>(at);
      at += sizeof array;
      if (array.dtype >= dtype_count || array.ndim > Shape::max_dims ||
          std::ranges::any_of(array.dims, [](std::int64_t dim) { return dim < 0; }))
        throw unreadable(r);
    }
    said[r] = describe(its, arrays);
    if (!words.empty()) said[r] += fmt::format(" with {}", words);
    agree = agree && said[r] == said[0];
    auto& rank = ranks_.emplace_back();
    const bool here = its.bytes != ~std::uint64_t{0};
    complete_ = complete_ && here;
    const auto* begin = at;
    const auto* end = messages_.get() + (r + 1) * room;
    for (const auto& array : arrays) {
      rank.shapes.emplace_back(std::span(array.dims).first(array.ndim));
      rank.data.push_back(here ? at : nullptr);
      if (!here) continue;
      const auto elements = static_cast<std::size_t>(rank.shapes.back().numel());
      const auto size = size_of(static_cast<DType>(array.dtype));
      if (elements > static_cast<std::size_t>(end - at) / size) throw unreadable(r);
      at += elements * size;
    }
    if (here && static_cast<std::uint64_t>(at - begin) != its.bytes) throw unreadable(r);
  }
  if (!agree)
    throw gather_error(Errc::mismatch, group, offer.caller, -1,
                       "ranks made different calls: " + differences(said) +
                           "every rank has to make the same call");
  for (std::size_t r = 0; r < ranks; ++r)
    if (ranks_[r].shapes.size() != offer.arrays.size()) throw unreadable(r);
}

RowLayout Announcement::layout() const {
  std::vector<std::int64_t> counts;
  for (const auto& rank : ranks_) counts.push_back(rank.shapes[0].rows());
  return RowLayout(counts);
}

}  // namespace tutti::internal
