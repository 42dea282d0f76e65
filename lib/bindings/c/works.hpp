#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <tutti/pending.hpp>
#include <tutti/work.hpp>

#include "c/values.hpp"

/// A Work. That of a gather of unknown sizes is derived: a Pending, whose value fills a result.
struct tutti_work {
  tutti_work() = default;
  explicit tutti_work(tutti::Work from) : work(std::move(from)) {}
  tutti_work(const tutti_work&) = delete;
  tutti_work& operator=(const tutti_work&) = delete;
  virtual ~tutti_work() = default;

  virtual void wait() { work.wait(); }
  virtual bool wait_until(tutti::Deadline deadline) const { return work.wait_until(deadline); }
  virtual bool done() const { return work.done(); }
  virtual void block_stream(tutti::Stream stream) { work.block_stream(stream); }
  virtual void on_done(std::function<void(const tutti::Error*)> f) { work.on_done(std::move(f)); }
  /// @throws Error unsupported for a gather of unknown sizes.
  virtual tutti::Work& plain() { return work; }

  tutti::Work work;
};

namespace tutti::c_abi {

inline tutti_work& of(tutti_work* work) {
  return deref(work, "the work");
}

inline Deadline deadline_after(std::int64_t ns) {
  return ns < 0 ? Deadline::none() : Deadline(std::chrono::nanoseconds(ns));
}

template <typename T>
struct PendingWork final : tutti_work {
  PendingWork(Pending<T> from, std::shared_ptr<Content> into, std::shared_ptr<Memory> of_arrays)
      : memory(std::move(of_arrays)), content(std::move(into)), pending(std::move(from)) {}

  void wait() override {
    if (std::exchange(taken, true)) return;
    fill(*content, pending.get());
  }
  bool wait_until(Deadline deadline) const override { return pending.wait_until(deadline); }
  bool done() const override { return pending.done(); }
  void block_stream(Stream stream) override { pending.block_stream(stream); }
  void on_done(std::function<void(const Error*)> f) override { pending.on_done(std::move(f)); }
  Work& plain() override {
    fail(Errc::unsupported,
         "a gather of unknown sizes can be waited for, but not chained, joined, coalesced or "
         "detached");
  }

  std::shared_ptr<Memory> memory;
  std::shared_ptr<Content> content;
  bool taken = false;
  Pending<T> pending;  // Last member: destroyed first.
};

}  // namespace tutti::c_abi
