#include "direct.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/fingerprint.hpp"
#include "collectives/blocks.hpp"
#include "collectives/reducer.hpp"
#include "thresholds.hpp"

namespace tutti::backend::memory {
namespace {

using collectives::copy_bytes;
using collectives::cut;
using collectives::Reducer;

/// True if the data are the blocks of the ranks, in their order.
bool has_blocks(const Op& op) noexcept {
  switch (op.kind) {
    case Operation::all_gather:
    case Operation::all_gather_bounded:
    case Operation::gather:
    case Operation::scatter:
    case Operation::reduce_scatter:
    case Operation::all_to_all:  // Of its result.
      return true;
    default:
      return false;
  }
}

/// The bytes of the data that the ranks divide among themselves.
std::size_t whole_bytes(const Op& op, int size) noexcept {
  if (has_blocks(op)) return block_begin(op, size);
  const bool has_data = op.kind == Operation::broadcast || internal::is_reduction(op.kind);
  return has_data ? op.in.bytes() : 0;
}

/// While this exists, the rank may access its peers' arrays.
class Access {
 public:
  explicit Access(Member& member) : member_(member) { member_.begin_access(); }
  ~Access() { member_.end_access(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  Member& member_;
};

}  // namespace

bool Direct::gains(const Op& op, const Member& member, std::size_t largest) noexcept {
  // Its function may take any time, in which a process must not write to the array of a peer whose
  // call has failed.
  if (op.reduce.kind == ReduceOp::Kind::custom && !member.in_one_process()) return false;
  const bool exchanges = op.kind == Operation::all_to_all;
  return (exchanges ? largest : whole_bytes(op, member.size())) > least_direct;
}

Direct::Direct(Member& member, const Op& op, bool in_entry, bool reads)
    : member_(member), op_(op), size_(member.size()), in_entry_(in_entry), reads_(reads) {
  const auto ranks = static_cast<std::size_t>(size_);
  entries_.resize(ranks);
  ins_.resize(ranks);
  outs_.resize(ranks);
  sent_.resize(ranks);
  const auto find = [&](const void* data, std::size_t bytes) {
    const auto shared = member.in_one_process() ? Location() : member.memory().find(data, bytes);
    if (shared.segment != Location::nowhere || !(member.in_one_process() || reads)) return shared;
    return Location{.segment = Location::process, .offset = reinterpret_cast<std::uintptr_t>(data)};
  };
  const auto in = find(op.in.data, op.in.bytes());
  const bool in_place = op.out.data == op.in.data && op.out.bytes() == op.in.bytes();
  own() = {.in = in,
           .out = in_place ? in : find(op.out.data, op.out.bytes()),
           .scale = op.reduce.scale,
           .bytes = op.in.bytes()};
}

// --- The arrays ---

/// The bytes of a rank's input that its peers read.
std::size_t Direct::in_bytes(int rank) const noexcept {
  switch (op_.kind) {
    case Operation::broadcast:
    case Operation::scatter:
      return rank == op_.root ? whole_bytes(op_, size_) : 0;
    case Operation::all_gather:
    case Operation::gather:
      return block_bytes(op_, rank);
    case Operation::all_gather_bounded:
    case Operation::all_to_all:
      return entries_[static_cast<std::size_t>(rank)].bytes;
    default:
      return whole_bytes(op_, size_);
  }
}

/// The bytes of a rank's output that its peers write.
std::size_t Direct::out_bytes(int rank) const noexcept {
  switch (op_.kind) {
    case Operation::reduce:
    case Operation::gather:
      return rank == op_.root ? whole_bytes(op_, size_) : 0;
    case Operation::broadcast:
      return rank == op_.root ? 0 : whole_bytes(op_, size_);
    case Operation::scatter:
    case Operation::reduce_scatter:
      return block_bytes(op_, rank);
    case Operation::all_to_all:  // Each rank reads its blocks.
      return 0;
    default:
      return whole_bytes(op_, size_);
  }
}

/// True if all ranks can access the memory.
bool Direct::is_shared(const Location& location) const noexcept {
  return location.segment != Location::nowhere &&
         (location.segment != Location::process || member_.in_one_process());
}

bool Direct::is_complete(int rank) const noexcept {
  const auto& entry = entries_[static_cast<std::size_t>(rank)];
  return (in_bytes(rank) == 0 || is_shared(entry.in)) &&
         (out_bytes(rank) == 0 || is_shared(entry.out));
}

bool Direct::is_readable(int rank) const noexcept {
  const auto& entry = entries_[static_cast<std::size_t>(rank)];
  return in_bytes(rank) == 0 || entry.in.segment != Location::nowhere;
}

/// The description of this rank's arrays, and where in its input its block for each rank begins.
void Direct::fill(std::uint64_t round) {
  member_.await_free(round);
  auto* to = member_.slot(member_.rank(), round);
  std::memcpy(to, &own(), sizeof own());
  to += sizeof own();
  std::uint64_t begin = 0;
  for (int r = 0; r < size_ && op_.kind == Operation::all_to_all; ++r, to += sizeof begin) {
    std::memcpy(to, &begin, sizeof begin);
    begin += static_cast<std::uint64_t>(op_.send_rows[r]) * row_bytes(op_);
  }
  member_.filled(round);
}

Direct::Way Direct::agree(std::uint64_t round) {
  bool complete = true;
  bool readable = reads_;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (!in_entry_ && r != member_.rank()) member_.await_filled(r, round);
    // Copied once, so that a peer cannot change it between the checks and the use.
    const auto* const from = in_entry_ ? member_.entry_data(r) : member_.slot(r, round);
    std::memcpy(&entries_[i], from, sizeof entries_[i]);
    if (op_.kind == Operation::all_to_all)
      std::memcpy(
          &sent_[i],
          from + sizeof entries_[i] + static_cast<std::size_t>(member_.rank()) * sizeof sent_[i],
          sizeof sent_[i]);
    const bool bounded = op_.kind == Operation::all_gather_bounded;
    if (bounded && entries_[i].bytes > block_bytes(op_, r))
      member_.fail_corrupt(r, "a block's length");
    complete = complete && is_complete(r);
    readable = readable && is_readable(r);
    none_is_named_ = none_is_named_ && !names_all(r);
  }
  if (!in_entry_) member_.taken(round);
  if (!complete && !readable) return Way::none;
  way_ = complete ? Way::parts : Way::reads;
  if (!member_.in_one_process() && !can_access_all()) return Way::none;
  for (int r = 0; r < size_; ++r) {
    const auto& entry = entries_[static_cast<std::size_t>(r)];
    ins_[static_cast<std::size_t>(r)] = locate(r, entry.in, in_bytes(r));
    if (complete) outs_[static_cast<std::size_t>(r)] = locate(r, entry.out, out_bytes(r));
  }
  return way_;
}

bool Direct::can_read() const {
  const Access access(member_);
  for (int r = 0; r < size_; ++r) {
    const auto& entry = entries_[static_cast<std::size_t>(r)];
    const int process = member_.process_of(r);
    const auto& array = in_bytes(r) != 0 ? entry.in : entry.out;
    const bool is_private =
        array.segment == Location::process && (in_bytes(r) != 0 || out_bytes(r) != 0);
    std::byte first{};
    if (process != 0 && is_private &&
        !read_process(process, &first, reinterpret_cast<const std::byte*>(array.offset), 1))
      return false;
  }
  return true;
}

/// All ranks know the same segments, so they agree on new ones at the same time.
bool Direct::can_access_all() {
  struct Array {
    int rank;
    Location location;
  };
  std::vector<Array> fresh;  // In segments to be mapped; usually empty.
  auto& peers = member_.peer_memory();
  peers.begin_call();
  bool refused = false;
  const auto look_at = [&](int r, const Location& location) {
    const auto state = peers.state(r, location);
    refused = refused || state == PeerMemory::State::refused;
    if (state == PeerMemory::State::unknown) fresh.push_back({r, location});
  };
  for (int r = 0; r < size_; ++r) {
    const auto& entry = entries_[static_cast<std::size_t>(r)];
    if (in_bytes(r) != 0 && entry.in.segment != Location::process) look_at(r, entry.in);
    if (out_bytes(r) != 0 && way_ == Way::parts) look_at(r, entry.out);
  }
  if (refused || fresh.empty()) return !refused;
  // A bit for each array, and the last bit for all that follow.
  const auto bit_of = [](std::size_t i) {
    return std::uint32_t{1} << std::min<std::size_t>(i, Member::agreed_bits - 1);
  };
  constexpr auto all = (std::uint32_t{1} << Member::agreed_bits) - 1;
  auto mapped = all;
  for (std::size_t i = 0; i < fresh.size(); ++i)
    if (!peers.map(fresh[i].rank, fresh[i].location)) mapped &= ~bit_of(i);
  mapped = member_.agree(mapped);
  for (std::size_t i = 0; i < fresh.size(); ++i)
    peers.settle(fresh[i].rank, fresh[i].location, (mapped & bit_of(i)) != 0);
  return mapped == all;
}

std::byte* Direct::locate(int rank, const Location& location, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (location.segment == Location::process) return reinterpret_cast<std::byte*>(location.offset);
  auto* const data = member_.peer_memory().data(rank, location, bytes);
  if (data == nullptr) member_.fail_corrupt(rank, "the location of an array");
  return data;
}

// --- The data ---

bool Direct::run() {
  bool complete = true;
  {
    const Access access(member_);
    if (internal::is_reduction(op_.kind))
      reduce();
    else if (way_ == Way::reads || op_.kind == Operation::all_to_all)
      complete = read_blocks();
    else
      copy();
  }
  if (way_ == Way::reads) return member_.await_read(complete);
  member_.await_moved();
  return true;
}

/// Calls visit(block, begin, bytes) for each piece of this rank's part of the data, where `begin`
/// counts from the beginning of all blocks. The data is divided by its length alone, so skewed
/// blocks and arrays in place cost no more than equal ones.
template <typename Visit>
void Direct::for_each_piece(const Visit& visit) {
  const auto whole = whole_bytes(op_, size_);
  const auto ranks = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(member_.rank());
  const auto first = cut(whole, ranks, me);
  const auto last = cut(whole, ranks, me + 1);
  const int blocks = has_blocks(op_) ? size_ : 1;
  for (int b = 0; b < blocks; ++b) {
    const auto begin = has_blocks(op_) ? block_begin(op_, b) : 0;
    const auto bytes = op_.kind == Operation::all_gather_bounded
                           ? in_bytes(b)
                           : (has_blocks(op_) ? block_bytes(op_, b) : whole);
    const auto end = std::min(last, begin + bytes);
    for (auto at = std::max(first, begin); at < end; at += direct_piece) {
      member_.check_access();
      visit(b, at, std::min(direct_piece, end - at));
    }
  }
}

void Direct::copy() {
  const bool scatters = op_.kind == Operation::scatter;
  const bool from_root = scatters || op_.kind == Operation::broadcast;
  for_each_piece([&](int b, std::size_t at, std::size_t bytes) {
    const auto block = static_cast<std::size_t>(b);
    const auto in_block = has_blocks(op_) ? at - block_begin(op_, b) : at;
    const auto* const from =
        from_root ? ins_[static_cast<std::size_t>(op_.root)] + at : ins_[block] + in_block;
    if (scatters) return copy_bytes(outs_[block] + in_block, from, bytes);
    for (auto* const out : outs_)
      if (out != nullptr) copy_bytes(out + at, from, bytes);
  });
}

/// This rank reads what it needs.
bool Direct::read_blocks() {
  const int me = member_.rank();
  auto* const out = static_cast<std::byte*>(op_.out.data);
  switch (op_.kind) {
    case Operation::broadcast:
      return me == op_.root || read_block(op_.root, 0, whole_bytes(op_, size_), out);
    case Operation::scatter:
      return read_block(op_.root, block_begin(op_, me), block_bytes(op_, me), out);
    case Operation::gather:
      if (me != op_.root) return true;
      break;
    default:
      break;
  }
  const bool exchanges = op_.kind == Operation::all_to_all;
  for (int i = 0; i < size_; ++i) {
    const int r = (me + i) % size_;
    const auto begin = exchanges ? sent_[static_cast<std::size_t>(r)] : 0;
    const auto bytes = exchanges ? block_bytes(op_, r) : in_bytes(r);
    const auto all = in_bytes(r);
    if (begin > all || bytes > all - begin) member_.fail_corrupt(r, "the location of a block");
    if (!read_block(r, begin, bytes, out + block_begin(op_, r))) return false;
  }
  return true;
}

/// to[0, bytes) = the input of a rank from `begin` on.
bool Direct::read_block(int rank, std::size_t begin, std::size_t bytes, std::byte* to) {
  const auto r = static_cast<std::size_t>(rank);
  const auto* const from = ins_[r] + begin;
  const bool is_private = entries_[r].in.segment == Location::process;
  const int process = is_private ? member_.process_of(rank) : 0;
  const auto piece = process != 0 ? read_piece : direct_piece;
  for (std::size_t at = 0; at < bytes; at += piece) {
    member_.check_access();
    const auto n = std::min(piece, bytes - at);
    if (process == 0)
      copy_bytes(to + at, from + at, n);
    else if (!read_process(process, to + at, from + at, n))
      return false;
  }
  return true;
}

void Direct::reduce() {
  const Reducer reducer(op_, size_);
  PerRank<const void*> inputs;
  PerRank<double> scales;
  inputs.resize(static_cast<std::size_t>(size_));
  for (const auto& entry : entries_) scales.push_back(entry.scale);
  for_each_piece([&](int b, std::size_t at, std::size_t bytes) {
    for (std::size_t r = 0; r < ins_.size(); ++r) inputs[r] = ins_[r] + at;
    const auto fold = [&](std::byte* out, std::size_t ranks) {
      member_.check_access();
      try {
        reducer.fold(out, {inputs.data(), ranks}, {scales.data(), ranks}, bytes);
      } catch (const Error& error) {  // Of a custom reduction. The peers wait for this rank.
        member_.end_access();
        member_.fail_call(error);
      }
    };
    switch (op_.kind) {
      case Operation::reduce_scatter:
        return fold(outs_[static_cast<std::size_t>(b)] + (at - block_begin(op_, b)), ins_.size());
      case Operation::reduce:
        return fold(outs_[static_cast<std::size_t>(op_.root)] + at, ins_.size());
      case Operation::scan:  // From the last rank on: its result in place is no other's input.
        for (auto r = outs_.size(); r-- > 0;) fold(outs_[r] + at, r + 1);
        return;
      case Operation::exclusive_scan:
        for (auto r = outs_.size(); r-- > 1;) fold(outs_[r] + at, r);
        return reducer.identity(outs_[0] + at, bytes);
      default:
        break;
    }
    auto* const own = outs_[static_cast<std::size_t>(member_.rank())] + at;
    fold(own, ins_.size());
    member_.check_access();  // This process may have been stopped since the last look.
    for (auto* const out : outs_) copy_bytes(out + at, own, bytes);
  });
}

// --- Errors ---

void Direct::withdraw() noexcept {
  if (!member_.is_broken() || member_.await_no_access()) return;
  member_.memory().quarantine(op_.in.data);
  member_.memory().quarantine(op_.out.data);
}

}  // namespace tutti::backend::memory
