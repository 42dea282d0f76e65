// tests/support/ranks.hpp for ranks that are processes. Every process runs the same cases in the
// same order and is one rank in each, TUTTI_RANK of TUTTI_SIZE. For cases that check only their own
// rank. After each case the ranks exchange their results; after a failure the groups are made anew.

#include "support/ranks.hpp"

#include <exception>
#include <map>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/cluster.hpp>
#include <tutti/init.hpp>

#include "support/failure_watch.hpp"

namespace tutti::test {

namespace {

/// This process as a rank.
class Here {
 public:
  Here() {
    const auto info = VariablesEnvironment().detect();
    if (!info) return;
    rank = info->rank;
    size = info->size;
    if (size > 1) store = open_cluster_store(*info, run_timeout);
  }
  static Here& get() {
    static Here here;
    return here;
  }
  /// True if all ranks succeeded. All ranks call it in the same order.
  bool all_well(bool well) {
    const std::string key = fmt::format("case/{}", cases_++);
    if (!well) store->add(key + "/failed", 1);
    if (store->add(key + "/here", 1) == size) store->set(key + "/done", "");
    (void)store->get(key + "/done", Deadline::after(run_timeout));
    return store->add(key + "/failed", 0) == 0;
  }
  /// A part of the store that no case has used.
  std::shared_ptr<Store> fresh_store() {
    return make_prefix_store(store, fmt::format("fresh/{}/", stores_++));
  }

  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store = make_memory_store();

 private:
  int cases_ = 0;
  int stores_ = 0;
};

using WorldKey = std::pair<std::string, bool>;
std::map<WorldKey, ProcessGroup>& shared_groups() {
  static auto& groups = *new std::map<WorldKey, ProcessGroup>;
  return groups;
}

/// True when this rank succeeded.
bool attempt(const std::function<void()>& body) {
  const testing::ScopedTrace trace(
      __FILE__, __LINE__, fmt::format("rank {} of {}", Here::get().rank, Here::get().size));
  const FailureWatch watch;
  try {
    body();
  } catch (...) {
    ADD_FAILURE() << text_of(std::current_exception());
    return false;
  }
  return !watch.fatal();
}

void run(ProcessGroup& group, const std::function<void(ProcessGroup&)>& body, bool& well) {
  well = attempt([&] { body(group); });
  if (!well) group.abort(fmt::format("rank {} left the test", Here::get().rank));
}

bool fits(const World& world) {
  if (world.size == Here::get().size) return true;
  ADD_FAILURE() << "a case of " << world.size << " ranks, and there are " << Here::get().size;
  return false;
}

}  // namespace

void on_threads(int, const std::function<void(int)>&) {
  ADD_FAILURE() << "a case whose ranks have to be threads";
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
  return options;
}

void on_ranks(const World& world, const std::function<void(ProcessGroup&)>& body) {
  if (!fits(world)) return;
  Here& here = Here::get();
  const WorldKey key{world.backend, world.checked};
  bool well = true;
  if (!shared_groups().contains(key)) {
    GroupOptions options = group_options(world, here.rank, here.fresh_store());
    options.name = to_string(world);
    well = attempt([&] { shared_groups().emplace(key, ProcessGroup::create(options)); });
  }
  if (well) run(shared_groups().at(key), body, well);
  if (!here.all_well(well)) shared_groups().erase(key);
}

void on_fresh_ranks(const World& world, const std::function<void(ProcessGroup&)>& body,
                    const Fresh& fresh) {
  if (!fits(world)) return;
  Here& here = Here::get();
  GroupOptions options = group_options(world, here.rank, here.fresh_store());
  options.timeout = fresh.timeout;
  options.name = fresh.name;
  std::optional<ProcessGroup> group;
  bool well = attempt([&] {
    if (fresh.store != nullptr) throw std::runtime_error("a case whose ranks share a store");
    if (fresh.adjust) fresh.adjust(options);
    group.emplace(ProcessGroup::create(options));
  });
  if (well) run(*group, body, well);
  (void)here.all_well(well);
}

void drop_shared_groups() {
  shared_groups().clear();
  Here::get().store.reset();  // Rank 0 may host it, and leaves last.
}

struct RankBarrier::Impl {};
RankBarrier::RankBarrier(int) : impl_(std::make_unique<Impl>()) {}
RankBarrier::~RankBarrier() = default;
void RankBarrier::wait() {
  (void)Here::get().all_well(true);
}

}  // namespace tutti::test
