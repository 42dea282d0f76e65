#include "collectives.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "collectives/blocks.hpp"
#include "row_counts.hpp"
#include "thresholds.hpp"
#include "values/current_error.hpp"

namespace tutti::backend::memory {
namespace {

using collectives::copy_bytes;

bool is_scaled(const Op& op) {
  return op.reduce.kind == ReduceOp::Kind::premul_sum;
}

}  // namespace

Collective::Collective(Member& member, const Op& op, bool in_entry, std::int64_t largest_rows,
                       std::optional<bool> reads)
    : member_(member),
      op_(op),
      rank_(member.rank()),
      size_(member.size()),
      reads_(reads),
      base_(member.position()) {
  piece_ = std::numeric_limits<std::size_t>::max();
  if (size_ == 1) return;
  choose(in_entry, static_cast<std::size_t>(largest_rows));
  const auto largest = static_cast<std::size_t>(largest_rows) * row_bytes(op_);
  if (way_ == Way::entry || reads == false || !Direct::gains(op, member, largest)) return;
  // After the entry: before, a peer with another call may fill the same memory.
  skips_ = in_entry && from_root() && member.first_round_of(op.root) != base_;
  block_ = op.kind == Operation::all_to_all  ? largest
           : op.kind == Operation::broadcast ? op.in.bytes()
                                             : largest_block();
  const bool only_reads = !internal::is_reduction(op.kind) && !member.in_one_process();
  // A test decides only when all ranks know that no other way serves.
  direct_.emplace(
      member, op, in_entry,
      only_reads && (reads == true || member.reads().reads(op.kind, block_).value_or(true)));
}

// --- How the data moves ---

void Collective::choose(bool in_entry, std::size_t largest_rows) {
  switch (op_.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::scan:
    case Operation::exclusive_scan:
      return choose_reduction(op_.in.bytes(), in_entry && !is_scaled(op_));
    case Operation::reduce_scatter:
      if (in_entry && !is_scaled(op_) && op_.in.bytes() <= inline_bytes) return;
      return divide_blocks(largest_block());
    case Operation::broadcast:
      if (in_entry && op_.in.bytes() <= inline_bytes) return;
      return divide(op_.in.bytes(), 2 * least_piece);
    case Operation::all_gather:
    case Operation::gather:
      if (in_entry && largest_block() <= inline_bytes) return;
      return divide(largest_block(), 2 * least_piece);
    case Operation::all_gather_bounded:  // The length is in the slot's prefix.
      return divide(largest_block(), 2 * least_piece);
    case Operation::scatter:
      if (in_entry && all_blocks() <= inline_bytes) return;
      return divide(all_blocks(), 2 * least_piece);
    case Operation::all_to_all:
      if (largest_rows != 0) return divide_blocks(largest_rows * row_bytes(op_));
      [[fallthrough]];
    case Operation::barrier:
    case Operation::send:
    case Operation::recv:
    case Operation::recv_any:
      rounds_ = 0;
      return;
  }
}

void Collective::choose_reduction(std::size_t bytes, bool in_entry) {
  if (in_entry && bytes <= inline_bytes) return;
  const bool scans = op_.kind == Operation::scan || op_.kind == Operation::exclusive_scan;
  const auto most = fold_everything(static_cast<std::size_t>(size_), op_.reproducible);
  if (!scans && bytes > most) {
    divide(bytes, least_piece);
    way_ = Way::slices;
  } else {
    divide(bytes, scans ? 2 * least_piece : most);
  }
}

void Collective::divide(std::size_t bytes, std::size_t least) {
  way_ = Way::rounds;
  const auto most = member_.layout().slot_bytes();
  piece_ = std::min(std::max(whole_lines((bytes + 1) / 2), least), most);
  rounds_ = (bytes + piece_ - 1) / piece_;
  if (rounds_ == 0) rounds_ = 1;
}

void Collective::divide_blocks(std::size_t largest) {
  way_ = Way::rounds;
  blocks_ = true;
  const auto most =
      member_.layout().slot_bytes() / static_cast<std::size_t>(size_) / cache_line * cache_line;
  piece_ = std::min(std::max(whole_lines(largest), cache_line), most);
  rounds_ = (largest + piece_ - 1) / piece_;
  if (rounds_ == 0) rounds_ = 1;
}

Collective::Part Collective::part(std::size_t bytes, std::size_t round) const noexcept {
  if (round == 0) return {0, std::min(bytes, piece_)};
  const auto from = std::min(bytes, round * piece_);
  return {from, std::min(piece_, bytes - from)};
}

std::size_t Collective::largest_block() const noexcept {
  std::size_t largest = 0;
  for (int r = 0; r < size_; ++r) largest = std::max(largest, block_bytes(op_, r));
  return largest;
}

std::span<const std::byte> Collective::small() const noexcept {
  if (direct_ && direct_->in_entry()) return direct_->entry();
  if (way_ != Way::entry || size_ == 1) return {};
  if (op_.kind == Operation::barrier || (from_root() && rank_ != op_.root)) return {};
  return {bytes_of(op_.in), op_.in.bytes()};
}

// --- Filling ---

void Collective::begin() {
  if (!has_rounds()) return;
  if (direct_ && !direct_->in_entry())
    direct_->fill(base_);
  else if (fills_first())
    fill(0);
}

void Collective::fill(std::size_t round) {
  const auto number = base_ + round;
  member_.await_free(number);
  if (internal::is_reduction(op_.kind)) member_.prefix(rank_, number).scale = op_.reduce.scale;
  const auto array = part(op_.in.bytes(), round);
  switch (op_.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
      if (way_ == Way::slices) {
        fill_other_slices(round);
        break;
      }
      [[fallthrough]];
    case Operation::scan:
    case Operation::exclusive_scan:
    case Operation::all_gather:
      copy_bytes(member_.slot(rank_, number), bytes_of(op_.in) + array.from, array.bytes);
      break;
    case Operation::all_gather_bounded:
      member_.prefix(rank_, number).bytes.store(op_.in.bytes(), std::memory_order_relaxed);
      copy_bytes(member_.slot(rank_, number), bytes_of(op_.in) + array.from, array.bytes);
      break;
    case Operation::broadcast:
    case Operation::scatter:
    case Operation::gather:
      if ((rank_ == op_.root) == from_root())
        copy_bytes(member_.slot(rank_, number), bytes_of(op_.in) + array.from, array.bytes);
      break;
    case Operation::reduce_scatter:
      fill_blocks(round, op_.rows);
      break;
    case Operation::all_to_all:
      fill_blocks(round, op_.send_rows);
      break;
    default:
      break;
  }
  member_.filled(number);
}

/// The offset in a slot of the block from one rank to another. Counted from the sender on, so that
/// two ranks use the same lines in both directions (Member::slot()).
std::size_t Collective::place_of_block(int from, int to) const noexcept {
  return static_cast<std::size_t>((to - from - 1 + size_) % size_) * piece_;
}

/// The part of each other rank's block.
void Collective::fill_blocks(std::size_t round, const Rows& rows) {
  auto* const slot = member_.slot(rank_, base_ + round);
  std::size_t offset = 0;
  for (int r = 0; r < size_; ++r) {
    const auto bytes = static_cast<std::size_t>(rows[r]) * row_bytes(op_);
    const auto p = part(bytes, round);
    if (r != rank_)
      copy_bytes(slot + place_of_block(rank_, r), bytes_of(op_.in) + offset + p.from, p.bytes);
    offset += bytes;
  }
}

// --- Taking ---

void Collective::run() {
  if (direct_ && run_direct()) return;
  if (has_rounds()) fill_after_entry();
  if (way_ == Way::slices)
    run_slices();
  else
    run_rounds();
  if (!has_rounds()) return;
  if (from_root()) member_.filled_by(op_.root, base_);
  member_.advance(rounds_);
}

/// False if the data has to move through slots.
bool Collective::run_direct() {
  auto way = direct_->agree(base_);
  if (!direct_->in_entry()) member_.advance(1);
  if (way == Direct::Way::reads && !reads_) {
    if (!member_.reads().reads(op_.kind, block_)) decide_reads();
    if (!*member_.reads().reads(op_.kind, block_)) way = Direct::Way::none;
  }
  if (way != Direct::Way::none) {
    if (direct_->run()) return true;
    member_.reads().give_up();
  }
  return false;
}

/// Fills round 0, unless begin() has.
void Collective::fill_after_entry() {
  // Unless the call has used rounds, which a peer may not have taken.
  if (skips_ && base_ == member_.position()) member_.skip_to(member_.first_round_of(op_.root));
  base_ = member_.position();
  if (!fills_first())
    fill(0);
  else if (direct_ && direct_->none_is_named())
    member_.all_filled(base_);
  else if (direct_)
    member_.filled(base_);
}

void Collective::run_rounds() {
  for (std::size_t k = 0; k < rounds_; ++k) {
    if (k + 1 < rounds_) fill(k + 1);
    take(k);
    if (way_ != Way::entry) member_.taken(base_ + k);
  }
}

/// The data of another rank, once it is there; in blocks, that for this rank.
const std::byte* Collective::source(int rank, std::size_t round) {
  if (way_ == Way::entry) return member_.entry_data(rank);
  member_.await_filled(rank, base_ + round);
  return member_.slot(rank, base_ + round) + (blocks_ ? place_of_block(rank, rank_) : 0);
}

void Collective::take(std::size_t round) {
  switch (op_.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
      return take_reduced(round);
    case Operation::scan:
    case Operation::exclusive_scan:
      return take_scanned(round);
    case Operation::reduce_scatter:
      return take_own_block_reduced(round);
    case Operation::all_gather:
    case Operation::all_gather_bounded:
    case Operation::gather:
      return take_gathered(round);
    case Operation::broadcast:
      return take_from_root(round);
    case Operation::scatter:
      return take_scattered(round);
    case Operation::all_to_all:
      return take_exchanged(round);
    default:
      return;
  }
}

/// out[0, bytes) = the fold of the first `ranks` arrays, which are `offset` bytes into the slots.
/// `own`: this rank's array, from its own memory.
void Collective::fold(std::byte* out, const std::byte* own, std::size_t round, std::size_t offset,
                      std::size_t bytes, int ranks) {
  if (bytes == 0) return;
  PerRank<const void*> inputs;
  PerRank<double> scales;
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(r == rank_ ? own : source(r, round) + offset);
    if (is_scaled(op_))
      scales.push_back(r == rank_ ? op_.reduce.scale : member_.prefix(r, base_ + round).scale);
  }
  for (std::size_t at = 0; at < bytes; at += fold_block) {
    const auto n = std::min(fold_block, bytes - at);
    try {
      reducer_->fold(out + at, {inputs.data(), inputs.size()}, {scales.data(), scales.size()}, n);
    } catch (const Error& error) {  // Of a custom reduction. The peers wait for this rank.
      member_.fail_call(error);
    }
    for (auto& input : inputs) input = static_cast<const std::byte*>(input) + n;
  }
}

void Collective::take_reduced(std::size_t round) {
  if (op_.kind == Operation::reduce && rank_ != op_.root) return;
  const auto p = part(op_.in.bytes(), round);
  fold(bytes_of(op_.out) + p.from, bytes_of(op_.in) + p.from, round, 0, p.bytes, size_);
}

void Collective::take_scanned(std::size_t round) {
  const auto p = part(op_.in.bytes(), round);
  auto* const out = bytes_of(op_.out) + p.from;
  const int ranks = op_.kind == Operation::scan ? rank_ + 1 : rank_;
  if (ranks == 0) return reducer_->identity(out, p.bytes);
  fold(out, bytes_of(op_.in) + p.from, round, 0, p.bytes, ranks);
}

void Collective::take_own_block_reduced(std::size_t round) {
  const auto p = part(op_.out.bytes(), round);
  const auto own = block_begin(op_, rank_);
  const auto offset = way_ == Way::entry ? own : 0;
  fold(bytes_of(op_.out) + p.from, bytes_of(op_.in) + own + p.from, round, offset, p.bytes, size_);
}

void Collective::take_gathered(std::size_t round) {
  if (op_.kind == Operation::gather && rank_ != op_.root) return;
  const bool bounded = op_.kind == Operation::all_gather_bounded;
  auto* out = bytes_of(op_.out);
  for (int r = 0; r < size_; ++r) {
    const auto room = block_bytes(op_, r);
    if (r == rank_) {
      const auto p = part(op_.in.bytes(), round);
      copy_bytes(out + p.from, bytes_of(op_.in) + p.from, p.bytes);
    } else if (room != 0) {
      const auto* from = source(r, round);
      const auto bytes =
          bounded ? member_.prefix(r, base_ + round).bytes.load(std::memory_order_relaxed) : room;
      if (bytes > room) member_.fail_corrupt(r, "a block's length");
      const auto p = part(bytes, round);
      copy_bytes(out + p.from, from, p.bytes);
    }
    out += room;
  }
}

void Collective::take_from_root(std::size_t round) {
  if (rank_ == op_.root) return;
  const auto p = part(op_.out.bytes(), round);
  if (p.bytes != 0) copy_bytes(bytes_of(op_.out) + p.from, source(op_.root, round), p.bytes);
}

/// The root's whole array moves; each rank takes its block.
void Collective::take_scattered(std::size_t round) {
  const auto begin = block_begin(op_, rank_);
  const auto end = begin + op_.out.bytes();
  const auto p = part(all_blocks(), round);
  const auto from = std::max(begin, p.from);
  const auto to = std::min(end, p.from + p.bytes);
  if (from >= to) return;
  const auto* data = rank_ == op_.root ? bytes_of(op_.in) + p.from : source(op_.root, round);
  copy_bytes(bytes_of(op_.out) + (from - begin), data + (from - p.from), to - from);
}

void Collective::take_exchanged(std::size_t round) {
  auto* out = bytes_of(op_.out);
  for (int r = 0; r < size_; ++r) {
    const auto bytes = block_bytes(op_, r);
    const auto p = part(bytes, round);
    if (r == rank_) {
      const auto own = static_cast<std::size_t>(op_.send_rows.offset(rank_)) * row_bytes(op_);
      copy_bytes(out + p.from, bytes_of(op_.in) + own + p.from, p.bytes);
    } else if (p.bytes != 0) {
      copy_bytes(out + p.from, source(r, round), p.bytes);
    }
    out += bytes;
  }
}

void Collective::run_whole(bool entered) {
  try {
    try {
      begin();
      if (!entered) member_.publish_entry(small());
      prepare();
      if (!entered) member_.await_entries(all_fill_first());
      run();
    } catch (const Error&) {
      throw;
    } catch (...) {  // No memory for a list of ranks. The group breaks before the withdrawal.
      member_.fail_call(internal::to_error(std::current_exception()));
    }
  } catch (const Error&) {
    if (direct_) direct_->withdraw();
    throw;
  }
}

void run_collectives(Member& member, std::span<const Op> ops, const Call& call) {
  member.begin(ops, call);
  bool entered = false;
  try {
    RowCounts counts(member, ops);
    if (!counts.empty()) {
      counts.fill(0);
      member.enter({}, true);
      entered = true;
      counts.compare();
    }
    for (const auto& op : ops) {
      if (is_point_to_point(op.kind)) continue;
      Collective collective(member, op, !entered,
                            op.kind == Operation::all_to_all ? counts.largest(op) : 0);
      collective.run_whole(entered);
      entered = true;
    }
  } catch (const Error&) {
    throw;         // Agreed on by all ranks, or the group is broken.
  } catch (...) {  // No memory for a list of ranks.
    member.fail_call(internal::to_error(std::current_exception()));
  }
  member.end();
}

}  // namespace tutti::backend::memory
