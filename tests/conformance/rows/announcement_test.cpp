#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "support/forward_backend.hpp"

// Bytes of another rank are not trusted: a message that contradicts itself is an error by name.

namespace tutti::test {
namespace {

/// Overwrites a number in the message of rank 1, as this rank received it.
struct Damage {
  const char* name;
  std::size_t at;  ///< From the beginning of the message.
  std::uint64_t value;
  std::size_t bytes;
};

class DamagingBackend final : public ForwardBackend {
 public:
  DamagingBackend(std::unique_ptr<Backend> inner, const Damage& damage, int ranks)
      : ForwardBackend(std::move(inner)), damage_(damage), ranks_(ranks) {}
  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = ForwardBackend::launch(ops, call);
    if (ops[0].kind == Operation::all_gather_bounded || ops[0].kind == Operation::all_gather) {
      const std::size_t room = ops[0].out.bytes() / static_cast<std::size_t>(ranks_);
      std::memcpy(static_cast<std::byte*>(ops[0].out.data) + room + damage_.at, &damage_.value,
                  damage_.bytes);
    }
    return work;
  }

 private:
  Damage damage_;
  int ranks_;
};

class Announcements : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Announcements, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(Announcements, AMessageThatContradictsItselfIsRefusedByName) {
  const Damage damages[] = {
      {"version", 0, 7, 4},
      {"more arrays than fit", 8, ~std::uint64_t{0}, 4},
      {"no array", 8, 0, 4},
      {"fewer bytes than the arrays have", 24, 4, 8},
      {"a dtype that does not exist", 64, 200, 4},
      {"a dtype of more than a byte", 64, 256 + static_cast<std::uint64_t>(DType::f32), 4},
      {"1000 dimensions", 68, 1000, 4},
      {"a negative dimension", 72, ~std::uint64_t{0}, 8},
      {"more rows than were sent", 72, std::uint64_t{1} << 40, 8},
  };
  for (const auto& damage : damages) {
    SCOPED_TRACE(damage.name);
    on_fresh_ranks(GetParam(),
                   [&](ProcessGroup& group) {
                     const float row[] = {1, 2, 3};
                     const ConstTensorView mine(row, DType::f32, {1, 3});
                     const auto call = [&] { (void)all_gather_rows(group, mine); };
                     if (group.rank() == 0)
                       expect_error(Errc::mismatch, {"rank 1"}, call);
                     else
                       call();
                   },
                   {.adjust = [&](GroupOptions& options) {
                     if (options.rank != 0) return;
                     options.decorate = [&damage,
                                         ranks = options.size](std::unique_ptr<Backend> inner) {
                       return std::make_unique<DamagingBackend>(std::move(inner), damage, ranks);
                     };
                   }});
  }
}

}  // namespace
}  // namespace tutti::test
