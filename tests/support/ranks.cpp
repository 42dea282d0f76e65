#include "support/ranks.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <iostream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/failure_watch.hpp"
#include "support/mutants.hpp"

namespace tutti::test {

namespace {

class Thread {
 public:
  Thread() : thread_([this] { loop(); }) {}
  ~Thread() {
    give(nullptr);
    thread_.join();
  }

  void give(const std::function<void()>* job) {
    const std::scoped_lock lock(mutex_);
    job_ = job;
    has_job_ = true;
    changed_.notify_all();
  }
  bool wait_until(std::chrono::steady_clock::time_point when) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, when, [this] { return !has_job_; });
  }

 private:
  void loop() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return has_job_; });
      if (job_ == nullptr) return;
      lock.unlock();
      (*job_)();
      lock.lock();
      has_job_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* job_ = nullptr;
  bool has_job_ = false;
  std::thread thread_;
};

// The errors of the ranks of one run, in the order of their occurrence.
class Failures {
 public:
  void add(int rank, const std::string& text) {
    const std::scoped_lock lock(mutex_);
    texts_.push_back(fmt::format("rank {}: {}", rank, text));
  }
  bool any() const { return !texts_.empty(); }
  void report() const {
    if (texts_.empty()) return;
    std::string all = texts_.front();
    for (std::size_t i = 1; i < texts_.size(); ++i) all += "\n  then " + texts_[i];
    ADD_FAILURE() << all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

// Runs `body` on one rank. True without an error.
bool attempt(int rank, int size, Failures& failures, const std::function<void()>& body) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("rank {} of {}", rank, size));
  const FailureWatch watch;
  try {
    body();
  } catch (...) {
    failures.add(rank, text_of(std::current_exception()));
    return false;
  }
  return !watch.fatal();
}

void start_and_join(int size, std::chrono::nanoseconds limit,
                    const std::function<void(int rank)>& body) {
  static std::vector<std::unique_ptr<Thread>> threads;
  while (threads.size() < static_cast<std::size_t>(size))
    threads.push_back(std::make_unique<Thread>());
  std::vector<std::function<void()>> jobs;
  for (int rank = 0; rank < size; ++rank) jobs.emplace_back([&body, rank] { body(rank); });
  for (std::size_t i = 0; i < jobs.size(); ++i) threads[i]->give(&jobs[i]);
  const auto until = std::chrono::steady_clock::now() + limit;
  bool hung = false;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (threads[i]->wait_until(until)) continue;
    std::cerr << "rank " << i << " of " << size << " hangs\n";
    hung = true;
  }
  if (hung) std::abort();  // The hung thread still uses local variables of this function.
}

using Groups = std::vector<std::optional<ProcessGroup>>;
using WorldKey = std::tuple<std::string, int, bool>;

std::map<WorldKey, Groups>& shared_groups() {
  static std::map<WorldKey, Groups> groups;
  return groups;
}

// Makes the groups of all ranks before any rank uses its own. True without an error.
bool make_groups(const World& world, Groups& groups, const std::shared_ptr<Store>& store,
                 const std::function<void(GroupOptions&)>& adjust) {
  Failures failures;
  groups.resize(static_cast<std::size_t>(world.size));
  start_and_join(world.size, run_timeout, [&](int rank) {
    attempt(rank, world.size, failures, [&] {
      GroupOptions options = group_options(world, rank, store);
      adjust(options);
      groups[static_cast<std::size_t>(rank)].emplace(ProcessGroup::create(options));
    });
  });
  failures.report();
  return !failures.any();
}

// True when every rank left `body` without an exception or a fatal failure.
bool run(const World& world, Groups& groups, std::chrono::nanoseconds limit,
         const std::function<void(ProcessGroup&)>& body) {
  Failures failures;
  std::atomic<bool> well = true;
  start_and_join(world.size, limit, [&](int rank) {
    ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
    if (attempt(rank, world.size, failures, [&] { body(group); })) return;
    well = false;
    group.abort(fmt::format("rank {} left the test", rank));
  });
  failures.report();
  return well;
}

}  // namespace

void on_threads(int size, const std::function<void(int rank)>& body) {
  Failures failures;
  start_and_join(size, run_timeout,
                 [&](int rank) { attempt(rank, size, failures, [&] { body(rank); }); });
  failures.report();
}

GroupOptions group_options(const World& world, int rank, std::shared_ptr<Store> store) {
  GroupOptions options;
  options.backend = backend_here(world.backend);
  options.store = std::move(store);
  options.rank = rank;
  options.size = world.size;
  options.timeout = group_timeout;
  options.checked = world.checked;
  options.logger = [](LogLevel, std::string_view) {};  // Broken groups are expected here.
  options.decorate = mutant_of_this_process(rank, world.size);
  return options;
}

void on_ranks(const World& world, const std::function<void(ProcessGroup&)>& body) {
  const WorldKey key{world.backend, world.size, world.checked};
  Groups& groups = shared_groups()[key];
  const auto name = [&](GroupOptions& options) { options.name = to_string(world); };
  const bool made = !groups.empty() || make_groups(world, groups, make_memory_store(), name);
  if (!made || !run(world, groups, run_timeout, body)) shared_groups().erase(key);
}

void on_fresh_ranks(const World& world, const std::function<void(ProcessGroup&)>& body,
                    const Fresh& fresh) {
  Groups groups;
  const auto store = fresh.store ? fresh.store : make_memory_store();
  const bool made = make_groups(world, groups, store, [&](GroupOptions& options) {
    options.timeout = fresh.timeout;
    options.name = fresh.name;
    if (fresh.adjust) fresh.adjust(options);
  });
  if (!made) return;
  run(world, groups, fresh.run, body);
  // In parallel: the end of a group may wait for that of its peers.
  on_threads(world.size, [&](int rank) { groups[static_cast<std::size_t>(rank)].reset(); });
}

void drop_shared_groups() {
  shared_groups().clear();
}

struct RankBarrier::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int here = 0;
  std::uint64_t round = 0;
};

RankBarrier::RankBarrier(int size) : impl_(std::make_unique<Impl>()) {
  impl_->size = size;
}

RankBarrier::~RankBarrier() = default;

void RankBarrier::wait() {
  std::unique_lock lock(impl_->mutex);
  const std::uint64_t round = impl_->round;
  if (++impl_->here == impl_->size) {
    impl_->here = 0;
    ++impl_->round;
    impl_->changed.notify_all();
    return;
  }
  if (!impl_->changed.wait_for(lock, 2 * group_timeout, [&] { return impl_->round != round; }))
    throw std::runtime_error("a rank did not reach the barrier");
}

}  // namespace tutti::test
