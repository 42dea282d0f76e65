#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backend/host_backend.hpp>
#include <tutti/store/store.hpp>

/// A backend whose ranks write their arrays into a store and read those of their peers: threads
/// over a store in memory, processes over files or TCP. Arrays of up to 8 MiB.
class StoreBackend final : public tutti::HostBackend {
 public:
  StoreBackend(std::shared_ptr<tutti::Store> store, std::string group, int rank, int size)
      : HostBackend(std::move(group), rank), store_(std::move(store)), size_(size) {}
  ~StoreBackend() override { stop(); }

  bool supports(tutti::Operation operation, tutti::DType dtype,
                tutti::ReduceOp::Kind reduce) const noexcept override {
    if (operation == tutti::Operation::all_reduce)
      return dtype == tutti::DType::f32 && reduce == tutti::ReduceOp::Kind::sum;
    return operation == tutti::Operation::all_gather || operation == tutti::Operation::broadcast ||
           operation == tutti::Operation::barrier;
  }

  tutti::Memory& memory() noexcept override { return tutti::host_memory(); }

  std::unique_ptr<Backend> split(const tutti::SplitInit& init) override {
    return std::make_unique<StoreBackend>(init.store, init.name, init.rank,
                                          static_cast<int>(init.ranks.size()));
  }

  void abort(std::string_view why) noexcept override {
    try {
      const auto text =
          "rank " + std::to_string(rank()) + " aborted the group: " + std::string(why);
      store_->compare_set("aborted", {}, std::as_bytes(std::span(text)));  // The first cause stays.
    } catch (const std::exception&) {  // Without the store the peers wait for their timeout.
    }
    fail_queued(tutti::Error(tutti::Errc::aborted, "the group was aborted"));
  }

  std::optional<tutti::Error> failure() const override {
    const auto why = text_at("aborted");
    return why ? std::optional(tutti::Error(tutti::Errc::aborted, *why)) : std::nullopt;
  }

 protected:
  void run(std::span<const tutti::Op> ops, const tutti::Call& call) override {
    const auto limit = call.limit();
    int index = 0;
    for (const auto& op : ops) exchange(op, call, std::to_string(index++), limit);
  }

  void publish(std::span<const tutti::Op> ops, const tutti::Call& call,
               const tutti::Error& why) noexcept override {
    if (tutti::is_point_to_point(ops.front().kind)) return;  // Messages have other numbers.
    try {
      store_->set(key(call, "refused", rank()), why.message());
    } catch (const std::exception&) {
    }
  }

 private:
  static std::string key(const tutti::Call& call, const std::string& what, int rank) {
    return std::to_string(call.seq) + "/" + what + "/" + std::to_string(rank);
  }

  std::optional<std::string> text_at(const std::string& key) const {
    const auto bytes = store_->try_get(key);
    if (!bytes) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }

  /// Writes this rank's array and reads those of all ranks, in their order.
  void exchange(const tutti::Op& op, const tutti::Call& call, const std::string& index,
                tutti::Deadline limit) {
    const bool has_input = op.kind != tutti::Operation::broadcast || op.root == rank();
    const std::size_t size = has_input ? op.in.bytes() : 0;
    tutti::Bytes own(sizeof call.fingerprint + size);
    std::memcpy(own.data(), &call.fingerprint, sizeof call.fingerprint);
    if (size != 0) std::memcpy(own.data() + sizeof call.fingerprint, op.in.data, size);
    store_->set(key(call, index, rank()), own);

    auto* out = static_cast<std::byte*>(op.out.data);
    for (int peer = 0; peer < size_; ++peer) {
      const auto bytes = await(call, index, peer, limit);
      if (!std::equal(own.begin(), own.begin() + sizeof call.fingerprint, bytes.begin()))
        throw tutti::Error(tutti::Errc::mismatch, "rank " + std::to_string(peer) +
                                                      " made another call than rank " +
                                                      std::to_string(rank()));
      const auto data = std::span(bytes).subspan(sizeof call.fingerprint);
      if (op.kind == tutti::Operation::all_reduce && peer > 0)
        add(out, data);
      else if (!data.empty())
        std::memcpy(out, data.data(), data.size());
      if (op.kind == tutti::Operation::all_gather) out += data.size();
    }
    // All ranks have made this call, so they have read what this rank wrote before it.
    for (const auto& old : written_) store_->erase(old);
    written_ = {key(call, index, rank())};
  }

  static void add(std::byte* sum, std::span<const std::byte> data) {
    for (std::size_t at = 0; at < data.size(); at += sizeof(float)) {
      float left;
      float right;
      std::memcpy(&left, sum + at, sizeof left);
      std::memcpy(&right, data.data() + at, sizeof right);
      left += right;
      std::memcpy(sum + at, &left, sizeof left);
    }
  }

  tutti::Bytes await(const tutti::Call& call, const std::string& index, int peer,
                     tutti::Deadline limit) const {
    for (;;) {
      const auto cause = failure();  // Read first: a peer may abort after it has made its call.
      if (auto bytes = store_->try_get(key(call, index, peer))) return *bytes;
      if (const auto why = text_at(key(call, "refused", peer)))
        throw tutti::Error(tutti::Errc::mismatch,
                           "rank " + std::to_string(peer) + " refused its call: " + *why);
      if (cause) throw tutti::Error(*cause);
      if (limit.expired())
        throw tutti::Error(tutti::Errc::timeout, "rank " + std::to_string(peer) +
                                                     " has not made the call before the deadline");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::shared_ptr<tutti::Store> store_;
  int size_;
  std::vector<std::string> written_;
};
