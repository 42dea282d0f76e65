#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/gather.hpp>

#include "conformance/cells.hpp"

// Bytes of another rank are not trusted: a contradictory message is an error with the reason.

namespace tutti::test {
namespace {

/// Overwrites a number in rank 1's message, as this rank received it.
struct Damage {
  const char* name;
  std::size_t at;  ///< Offset in the message.
  std::uint64_t value;
  std::size_t bytes;
};

class DamagingBackend final : public ForwardingBackend {
 public:
  DamagingBackend(std::unique_ptr<Backend> inner, const Damage& damage, int ranks)
      : ForwardingBackend(std::move(inner)), damage_(damage), ranks_(ranks) {}
  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = ForwardingBackend::launch(ops, call);
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

class MetadataExchanges : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MetadataExchanges, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(MetadataExchanges, AMessageThatContradictsItselfIsRefusedByName) {
  // The offset after the version, the flag of a refusal, and the function: the words to compare,
  // which are empty.
  const std::size_t words = 4 + 1 + 4 + std::string_view("all_gather_rows").size();
  const std::size_t bytes = words + 4 + 1 + 4;
  const std::size_t arrays = bytes + 8;
  const Damage damages[] = {
      {"version", 0, 7, 4},
      {"a function's name that is too long", 5, ~std::uint64_t{0}, 4},
      {"more words than fit", words, ~std::uint64_t{0}, 4},
      {"more arrays than fit", arrays, 255, 1},
      {"no array", arrays, 0, 1},
      {"fewer bytes than the arrays have", bytes, 4, 8},
      {"a dtype that does not exist", arrays + 1, 200, 1},
      {"1000 dimensions", arrays + 2, 1000, 4},
      {"a negative dimension", arrays + 6, ~std::uint64_t{0}, 8},
      {"more rows than were sent", arrays + 6, std::uint64_t{1} << 40, 8},
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
