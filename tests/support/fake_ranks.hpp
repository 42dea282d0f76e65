#pragma once

#include <functional>

#include <tutti/process_group.hpp>

#include "support/fake_backend.hpp"
#include "support/fake_device.hpp"
#include "support/worlds.hpp"

namespace tutti::test {

/// A rank whose arrays are on a fake device, and two streams of its program.
struct FakeRank {
  ProcessGroup& group;
  FakeDevice& device;
  FakeStream& compute;
  FakeStream& other;
  const FakeBackend* backend = nullptr;  ///< Of `group`.
};

/// Runs `body` on `world.size` ranks, each over a FakeBackend with these flaws, and synchronizes
/// their streams. A rank that throws aborts its group.
void run_fake_ranks(const World& world, FakeFlaws flaws,
                    const std::function<void(const FakeRank&)>& body);

}  // namespace tutti::test
