#include <tutti/init.hpp>

#include "internal/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

ProcessGroup init(const InitOptions& options) {
  if (options.rank.has_value() != options.size.has_value())
    internal::failf(Errc::invalid_argument, "init: {} is set, but {} is not; they go together",
                    options.rank ? "rank" : "size", options.rank ? "size" : "rank");
  const VariablesEnvironment variables;
  const ClusterEnvironment& environment =
      options.environment == nullptr ? variables : *options.environment;
  GroupOptions group = options.group;
  std::optional<ClusterInfo> told;
  if (options.rank) {
    group.rank = *options.rank;
    group.size = *options.size;
  } else {
    told = environment.detect();
    if (!told)
      fail(Errc::not_initialized,
           "init: no launcher found; set InitOptions::rank and size, or TUTTI_RANK and TUTTI_SIZE");
    group.rank = told->rank;
    group.size = told->size;
  }
  if (group.store == nullptr && group.size > 1) {
    if (!told) told = environment.detect();
    if (!told || told->store.empty())
      internal::failf(Errc::invalid_argument,
                      "init: {} ranks need a store to find each other; set GroupOptions::store or "
                      "TUTTI_STORE=file:///directory",
                      group.size);
    group.store = open_store(told->store);
  }
  return ProcessGroup::create(group);
}

}  // namespace tutti
