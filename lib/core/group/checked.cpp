#include "group/checked.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/host_backend.hpp>

#include "backend/agreement.hpp"
#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "backend/rendezvous.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

// Every rank writes a Record of its call under check/<number>/<rank> and reads the other ranks'
// records. On host memory this happens where the call runs: inline, or on this decorator's worker,
// so that async calls do not block and groups stay independent. For device arrays it happens in the
// caller's thread, without touching a stream. A difference is found before the inner backend gets
// the call, so the group stays usable.
//
// A send or receive in host memory is launched at once, with a record under check/pair/.... Each of
// the two ranks compares the other's record while it waits. Sends and receives of device arrays are
// not compared.

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// The longest time until a waiting call notices an abort or a failure of the inner backend.
constexpr auto look_up = 20ms;

/// True for a lost peer, which belongs to no call: every call ends with it.
bool is_of_all(const Error& cause) {
  return cause.code() == Errc::peer_lost && cause.where().operation.empty();
}

class Checked final : public HostBackend {
 public:
  Checked(std::unique_ptr<Backend> inner, std::shared_ptr<Store> store, const std::string& group,
          int rank, int size)
      : HostBackend(group, rank),
        inner_(std::move(inner)),
        store_(make_prefix_store(std::move(store), "check/")),
        agreement_(store_, rank, size),
        size_(size),
        on_host_(inner_->memory().device().type == DeviceType::cpu),
        matches_by_itself_(inner_->supports(Operation::recv_any, DType::u8, ReduceOp::Kind::sum)) {}
  ~Checked() override {
    agreement_.leave(0);  // A peer may wait for a record of this rank.
    stop();
  }

  bool supports(Operation o, DType d, ReduceOp::Kind k) const noexcept override {
    return inner_->supports(o, d, k);
  }
  bool reproduces() const noexcept override { return inner_->reproduces(); }
  Memory& memory() noexcept override { return inner_->memory(); }
  std::unique_ptr<Backend> split(const SplitInit& init) override {
    auto part = inner_->split(init);
    if (part == nullptr) return nullptr;
    return make_checked(std::move(part), init.store, init.name, init.rank,
                        static_cast<int>(init.ranks.size()));
  }

  Work launch(std::span<const Op> ops, const Call& call) override {
    if (on_host_) return HostBackend::launch(ops, call);
    Call limited = call;
    limited.deadline = call.limit();  // Includes the time of the comparison.
    compare_all(collectives_of(ops), ops, limited);
    return inner_->launch(ops, limited);
  }

  void abort(std::string_view why) noexcept override {
    if (const auto cause = inner_->failure(); cause && is_of_all(*cause)) return give_up(*cause);
    give_up(described(Errc::aborted, [&] {
      return Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", rank(), why),
                   {.rank = rank()});
    }));
  }
  std::optional<Error> failure() const override { return inner_->failure(); }
  std::string transport() const override { return inner_->transport(); }
  RegistrationKind registrable(const TensorView& block, Stream stream) const override {
    return inner_->registrable(block, stream);
  }
  Registration register_memory(const TensorView& block, RegistrationKind kind,
                               Deadline limit) override {
    return inner_->register_memory(block, kind, limit);
  }
  Memory& registrable_memory() noexcept override { return inner_->registrable_memory(); }
  Memory& staging_memory() noexcept override { return inner_->staging_memory(); }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    const auto collectives = collectives_of(ops);
    Call now = call;
    now.deadline = call.limit();  // Includes the time of the comparison.
    compare_all(collectives, collectives, now);
    now.blocking = true;
    now.in_order = false;
    Work work = inner_->launch(collectives, now);
    work.wait();
  }

  void post(std::span<const Op> ops, const Call& call, Posts& posted) override {
    std::vector<Op> pairs;
    for (const auto& op : ops)
      if (is_point_to_point(op.kind)) pairs.push_back(op);
    std::vector<Record> records;
    posted.reserve(1);
    Call now = call;
    now.blocking = false;
    now.deadline = call.limit();
    if (!matches_by_itself_ && !pairs.empty()) await_store(pairs, now);
    for (const auto& op : pairs) {
      if (matches_by_itself_) break;
      records.push_back(Record::of({&op, 1}, paired(op, call)));
      publish_pair(op, records.back());
    }
    // run() launches the collectives under the call's number, so the messages take it only when
    // there are no collectives.
    now.in_order = call.in_order && pairs.size() == ops.size();
    try {
      Work work = inner_->launch(pairs, now);
      if (work.state() == nullptr) return;
      auto inner = std::move(work).release();
      if (matches_by_itself_) pairs.clear();
      posted.add(
          std::make_shared<Watch>(*this, inner, inner, std::move(pairs), std::move(records), now));
    } catch (...) {  // The inner backend has told the peers of it; the store has no record yet.
      const auto thrown = std::current_exception();
      publish_refusal(pairs, now, to_error(thrown));
      auto failed = calls().make_state<HostState>();
      failed->finish(thrown);
      posted.add(std::move(failed));
    }
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    publish_refusal(ops, call, why);
    inner_->refuse(ops, call, why);
  }

 private:
  void publish_refusal(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
    try {
      if (!agreement_.answers()) return;
      for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
        const bool message = is_point_to_point(part[0].kind) && part.size() == 1;
        if (message && matches_by_itself_) return;
        put(message ? pair_key(part[0], true) : key(its.seq, rank()),
            Record::refusal(part, its, why));
      });
    } catch (...) {  // Without the store the peers wait for their deadline.
    }
  }

  /// The state of a launch's sends and receives. Compares the peers' records while a thread waits
  /// for it.
  class Watch final : public WorkState {
   public:
    /// `ends`: the state that done() and wait_until() refer to: `inner`, or a continuation of
    /// `inner`.
    Watch(Checked& group, std::shared_ptr<WorkState> inner, std::shared_ptr<WorkState> ends,
          std::vector<Op> pairs, std::vector<Record> records, Call call)
        : group_(group),
          inner_(std::move(inner)),
          ends_(std::move(ends)),
          pairs_(std::move(pairs)),
          records_(std::move(records)),
          call_(call) {
      call_.name = {};
    }
    bool done() const noexcept override { return ends_->done(); }
    bool wait_until(Deadline deadline) override {
      for (;;) {
        const auto slice = Deadline::after(std::min<std::chrono::nanoseconds>(
            look_up, deadline.is_set() ? deadline.remaining() : look_up));
        if (ends_->wait_until(slice)) {
          forget();
          return true;
        }
        try {
          if (const auto error = group_.compare_pairs(pairs_, records_, call_)) throw Error(*error);
        } catch (...) {  // A difference, or an error of the store.
          difference_ = std::current_exception();
          const Error error = to_error(difference_);
          // Both withdraw() and abort() end the use of the buffers.
          if (breaks_group(error.code()) || !inner_->withdraw(error))
            group_.inner_->abort(error.what());
          ends_->wait_until(Deadline::none());
          return true;
        }
        if (deadline.is_set() && deadline.expired()) return false;
      }
    }
    std::exception_ptr error() const noexcept override {
      // If withdraw() ended inner_, the error is the difference, not the one that withdraw() gave
      // to inner_. A continuation passes on the error of inner_.
      return difference_ != nullptr && ends_ == inner_ ? difference_ : ends_->error();
    }
    void block_stream(Stream stream) override { inner_->block_stream(stream); }
    /// While only a continuation waits, no thread compares. A difference that the transport does
    /// not detect then ends the call only at its deadline.
    std::shared_ptr<WorkState> then(std::function<void()> next) override {
      return on_own_queue()->then(std::move(next));
    }
    std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
      auto after = std::make_shared<Watch>(group_, inner_, on_own_queue()->on_done(std::move(f)),
                                           pairs_, records_, call_);
      after->forgotten_ = true;
      return after;
    }

   private:
    /// Returns a state that ends with inner_ and whose continuations run on the same worker as
    /// those of the group's other calls.
    std::shared_ptr<HostState> on_own_queue() {
      auto end = group_.calls().make_state<HostState>();
      std::vector<std::string> used;
      if (!std::exchange(forgotten_, true)) used = used_keys();
      // A difference found earlier is the cause, not the withdrawal that followed.
      (void)inner_->on_done([end, inner = inner_, cause = difference_, store = group_.store_,
                             used = std::move(used)](const Error* error) {
        try {
          for (const auto& key : used)
            if (error == nullptr) store->erase(key);
        } catch (...) {  // The records stay in the store.
        }
        end->finish(cause != nullptr ? cause : inner->error());
      });
      return end;
    }
    /// Erases the records of both sides of each receive that has ended. A sender ignores a missing
    /// record.
    void forget() noexcept {
      if (std::exchange(forgotten_, true) || inner_->error() != nullptr) return;
      try {
        for (const auto& key : used_keys()) group_.store_->erase(key);
      } catch (...) {  // The records stay in the store.
      }
    }
    std::vector<std::string> used_keys() const {
      std::vector<std::string> keys;
      for (const auto& op : pairs_)
        if (op.kind == Operation::recv)
          for (const bool mine : {true, false}) keys.push_back(group_.pair_key(op, mine));
      return keys;
    }

    Checked& group_;  // Kept alive by the Work's owner.
    std::shared_ptr<WorkState> inner_;
    std::shared_ptr<WorkState> ends_;
    std::vector<Op> pairs_;
    std::vector<Record> records_;  // This rank's records, one per pair.
    Call call_;
    std::exception_ptr difference_;
    bool forgotten_ = false;
  };

  static std::string key(std::uint64_t seq, int rank) { return fmt::format("{}/{}", seq, rank); }
  static Call paired(const Op& op, const Call& call) {
    Call one = call;
    one.seq = op.seq;
    one.fingerprint = op.fingerprint;
    return one;
  }
  std::string pair_key(const Op& op, bool mine) const {
    const bool sending = op.kind == Operation::send;
    return fmt::format("pair/{}.{}.{}.{}/{}", sending ? rank() : op.peer,
                       sending ? op.peer : rank(), op.tag, op.seq, sending == mine ? "s" : "r");
  }

  void put(const std::string& at, const Record& record) {
    Writer out;
    write(out, record);
    store_->set(at, out.bytes());
  }
  void publish_pair(const Op& op, const Record& record) { put(pair_key(op, true), record); }

  static Reader reader_of(const Bytes& bytes) {
    return {bytes, Errc::mismatch, "checked mode: a peer's record"};
  }

  std::optional<Error> compare_pairs(std::span<const Op> pairs, std::span<const Record> own_records,
                                     const Call& call) {
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto& op = pairs[i];
      const auto& own = own_records[i];
      const auto bytes = store_->try_get(pair_key(op, false));
      if (!bytes) continue;
      const Call one = paired(op, call);
      const bool sending = op.kind == Operation::send;
      auto in = reader_of(*bytes);
      const Record theirs = read_record(in);
      if (theirs.refused != 0) return refused_error(group(), {&op, 1}, one, op.peer, theirs.view());
      if (own.fingerprint != theirs.fingerprint)
        return call_error(Errc::mismatch, group(), {&op, 1}, one, -1,
                          sending
                              ? sides_text(group(), rank(), own.view(), op.peer, theirs.view())
                              : sides_text(group(), op.peer, theirs.view(), rank(), own.view()));
    }
    return std::nullopt;
  }

  Bytes await(std::uint64_t seq, int peer, std::span<const Op> ops, const Call& call,
              Deadline limit) {
    const auto at = key(seq, peer);
    const auto look = [&] {
      // Read before the cause: a rank publishes the cause before it aborts the inner backends or
      // leaves, so the store has the cause of any failure seen here. Read before the record, so as
      // not to miss a record written just before the rank left.
      const auto failure = inner_->failure();
      const bool left = agreement_.left(peer);
      if (const auto cause = agreement_.cause({})) throw Error(*cause);
      if (failure) throw Error(*failure);
      if (left && !store_->try_get(at))
        throw call_error(Errc::peer_lost, group(), ops, call, peer,
                         fmt::format("rank {} has left the group; this rank called {}", peer,
                                     describe(ops, call)));
      if (limit.expired() && !store_->try_get(at))
        throw call_error(Errc::timeout, group(), ops, call, peer,
                         fmt::format("rank {} has not made its call before the deadline; this rank "
                                     "called {}",
                                     peer, describe(ops, call)));
    };
    return await_key(*store_, at, limit, look_up, look);
  }

  /// Throws the failure of the inner backend, as the error of a call that begins.
  void check_inner(std::span<const Op> ops, const Call& call) const {
    if (const auto cause = inner_->failure())
      throw Error(is_of_all(*cause) ? with_location(*cause, group(), ops, call, rank())
                                    : broken(*cause));
  }

  /// Blocks while the store does not answer, before a write that would block for the timeout of the
  /// store. The inner backend fails after `dead_after`.
  void await_store(std::span<const Op> ops, const Call& call) {
    const auto limit = call.limit();
    while (!agreement_.answers()) {
      check_inner(ops, call);
      if (!limit.expired()) continue;
      const Error late = call_error(Errc::timeout, group(), ops, call, rank(),
                                    "the store has not answered before the deadline");
      give_up(late);
      throw Error(late);
    }
  }

  /// Compares this call of all ranks. @throws Error mismatch on all ranks if the calls differ: the
  /// inner backend skips the number. An error while waiting for a record breaks the group.
  /// @param ops  the collectives of the launch.
  /// @param all  the operations that the inner backend refuses then.
  void compare_all(std::span<const Op> ops, std::span<const Op> all, const Call& call) {
    if (ops.empty()) return;
    check_inner(ops, call);
    await_store(ops, call);
    std::vector<Bytes> encoded(static_cast<std::size_t>(size_));
    auto& mine = encoded[static_cast<std::size_t>(rank())];
    mine = encode(ops, call);
    store_->set(key(call.seq, rank()), mine);
    const auto limit = call.limit();
    try {
      for (int r = 0; r < size_; ++r)
        if (r != rank())
          encoded[static_cast<std::size_t>(r)] = await(call.seq, r, ops, call, limit);
    } catch (...) {
      const Error error = to_error(std::current_exception());
      give_up(error);
      throw Error(error);
    }
    try {
      std::vector<Record> records;
      std::vector<Reader> counts;  // Positioned after the records.
      for (const auto& bytes : encoded) {
        auto in = reader_of(bytes);
        records.push_back(read_record(in));
        counts.push_back(in);
      }
      forget(call.seq, records);
      auto error = compare(group(), ops, call, records);
      if (!error) error = compare_counts(ops, call, counts);
      if (error) throw Error(*error);
    } catch (...) {  // Even if a record cannot be read: the number is used.
      const Error error = to_error(std::current_exception());
      inner_->refuse(all, call, error);
      throw Error(error);
    }
  }

  static std::vector<Op> collectives_of(std::span<const Op> ops) {
    std::vector<Op> collectives;
    for (const auto& op : ops)
      if (!is_point_to_point(op.kind)) collectives.push_back(op);
    return collectives;
  }

  /// Encodes a record, then for every all_to_all the row counts that this rank sends and expects.
  Bytes encode(std::span<const Op> ops, const Call& call) const {
    Writer out;
    write(out, Record::of(ops, call));
    for (const auto& op : ops)
      if (op.kind == Operation::all_to_all)
        for (const auto* rows : {&op.send_rows, &op.rows}) {
          std::vector<std::int64_t> list;
          for (int r = 0; r < size_; ++r) list.push_back((*rows)[r]);
          out.list(list);
        }
    return out.take();
  }

  /// Compares the lists of rows; empty if they agree. The records are equal, so all ranks have sent
  /// the same number of lists. `readers`: one per rank, positioned at its lists.
  std::optional<Error> compare_counts(std::span<const Op> ops, const Call& call,
                                      std::span<Reader> readers) {
    const auto list_of = [&](Reader& in) {
      auto list = in.list();
      if (std::ssize(list) != size_)
        failf(Errc::mismatch,
              "checked mode: a peer's record lists the rows of {} ranks; the group has {}",
              list.size(), size_);
      return list;
    };
    for (const auto& op : ops) {
      if (op.kind != Operation::all_to_all) continue;
      std::vector<std::vector<std::int64_t>> sent;
      std::vector<std::vector<std::int64_t>> expected;
      for (auto& in : readers) {
        sent.push_back(list_of(in));
        expected.push_back(list_of(in));
      }
      const auto count = [](const auto& lists, int rank, int peer) {
        return lists[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)];
      };
      auto error = compare_rows(
          group(), ops, call, size_, [&](int from, int to) { return count(sent, from, to); },
          [&](int from, int to) { return count(expected, to, from); });
      if (error) return error;
    }
    return std::nullopt;
  }

  /// Erases this rank's records of earlier calls. All ranks have read them, because all records of
  /// `seq` have arrived. A rank that refused `seq` may still need them: then nothing is erased.
  void forget(std::uint64_t seq, std::span<const Record> records) {
    for (const auto& record : records)
      if (record.refused != 0) return;
    for (; forgotten_ < seq; ++forgotten_) store_->erase(key(forgotten_, rank()));
  }

  /// Breaks the group on all ranks with the same cause: the first in the store.
  void give_up(const Error& error) noexcept {
    // Without its location, because each call that the error ends adds its own.
    const Error mine = described(error.code(), [&] {
      return Error(error.code(), error.message(), {.rank = error.where().rank});
    });
    const Error cause = agreement_.report({.cause = mine});
    fail_queued(cause);
    inner_->abort(cause.message());
  }

  std::unique_ptr<Backend> inner_;
  std::shared_ptr<Store> store_;
  Agreement agreement_;
  int size_;
  bool on_host_;
  /// The inner backend receives from any rank and compares sends and receives itself when it
  /// matches them. The numbers of the two sides may differ then, so this class does not compare
  /// them.
  bool matches_by_itself_;
  std::uint64_t forgotten_ = 0;  // This rank's records below this number are erased.
};

}  // namespace

std::unique_ptr<Backend> make_checked(std::unique_ptr<Backend> inner, std::shared_ptr<Store> store,
                                      const std::string& group, int rank, int size) {
  return std::make_unique<Checked>(std::move(inner), std::move(store), group, rank, size);
}

}  // namespace tutti::internal
