#include "support/fake_ranks.hpp"

#include <memory>
#include <utility>

#include <tutti/backend/backend_table.hpp>

#include "support/ranks.hpp"

namespace tutti::test {

void run_fake_ranks(const World& world, FakeFlaws flaws,
                    const std::function<void(const FakeRank&)>& body) {
  const auto store = make_memory_store();
  on_threads(world.size, [&](int rank) {
    GroupOptions options = group_options(world, rank, store);
    options.backend = GroupOptions().backend;
    options.name = "fake";
    FakeDevice device(rank);
    FakeStream compute;
    FakeStream other;
    auto backend =
        std::make_unique<FakeBackend>(device,
                                      BackendInit{.store = make_prefix_store(store, "in/"),
                                                  .rank = rank,
                                                  .size = world.size,
                                                  .name = "fake",
                                                  .timeout = options.timeout,
                                                  .logger = options.logger},
                                      flaws);
    const FakeBackend* const fake = backend.get();
    ProcessGroup group = ProcessGroup::create(options, std::move(backend));
    try {
      body({group, device, compute, other, fake});
    } catch (...) {
      group.abort("a rank left the test");
      throw;
    }
    compute.synchronize();
    other.synchronize();
  });
}

}  // namespace tutti::test
