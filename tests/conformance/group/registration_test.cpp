#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"

// Programs that register memory run over every backend; a backend that gains nothing returns
// `none`.

namespace tutti::test {
namespace {

/// Numbers in registrable_memory().
class Numbers {
 public:
  Numbers(ProcessGroup& group, std::int64_t count)
      : values_(group.registrable_memory(), Shape{count}, DType::f32), memory_(group.memory()) {}

  TensorView view() { return values_; }
  void set(float value) {
    const std::vector<float> host(static_cast<std::size_t>(values_.shape().numel()), value);
    memory_.copy(values_.data(), host.data(), values_.bytes(), {});
  }
  std::vector<float> get() {
    std::vector<float> host(static_cast<std::size_t>(values_.shape().numel()));
    memory_.copy(host.data(), values_.data(), values_.bytes(), {});
    return host;
  }

 private:
  Tensor values_;
  Memory& memory_;
};

void expect_sum(ProcessGroup& group, Numbers& numbers) {
  numbers.set(static_cast<float>(group.rank() + 1));
  group.all_reduce(numbers.view());
  const auto sum = static_cast<float>(group.size() * (group.size() + 1) / 2);
  for (const float value : numbers.get()) ASSERT_EQ(value, sum);
}

class RegistrationKinds : public testing::TestWithParam<World> {
 protected:
  static const World& world() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, RegistrationKinds, testing::ValuesIn(worlds()), CaseName());

TEST_P(RegistrationKinds, ChangesNoResultAndSaysWhatItIs) {
  on_ranks(world(), [](ProcessGroup& group) {
    Numbers numbers(group, 1000);
    expect_sum(group, numbers);
    {
      const auto registered = group.register_memory(numbers.view());
      if (group.memory().device().type == DeviceType::cpu) {
        EXPECT_EQ(registered.kind(), RegistrationKind::none);
      }
      if (world().backend == "nccl_double") {
        EXPECT_EQ(registered.kind(), RegistrationKind::window);
      }
      expect_sum(group, numbers);
    }
    expect_sum(group, numbers);
  });
}

TEST_P(RegistrationKinds, MayEndAfterItsGroup) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    std::optional<ProcessGroup> part = group.split(0);
    ASSERT_TRUE(part.has_value());
    Numbers numbers(*part, 10);
    const auto registered = part->register_memory(numbers.view());
    expect_sum(*part, numbers);
    part.reset();
    expect_sum(group, numbers);
  });
}

TEST_P(RegistrationKinds, ABlockThatIsNoneIsRefused) {
  on_ranks(world(), [](ProcessGroup& group) {
    Numbers numbers(group, 10);
    TensorView elsewhere = numbers.view();
    elsewhere.device = {DeviceType::extension, 3};
    expect_error(Errc::invalid_argument, {"register_memory", "ext"},
                 [&] { (void)group.register_memory(elsewhere); });
    TensorView nothing = numbers.view();
    nothing.data = nullptr;
    expect_error(Errc::invalid_argument, {"register_memory", "null", "40 bytes"},
                 [&] { (void)group.register_memory(nothing); });
    expect_usable(group);
  });
}

TEST_P(RegistrationKinds, IsNoCallToBeCollected) {
  on_fresh_ranks(world(), [](ProcessGroup& group) {
    Numbers numbers(group, 10);
    {
      Coalesce together(group);
      expect_error(Errc::invalid_argument, {"register_memory", "Coalesce"},
                   [&] { (void)group.register_memory(numbers.view()); });
      together.launch().wait();
    }
    expect_usable(group);
  });
}

class RegistrationOfSeveral : public RegistrationKinds {};
INSTANTIATE_TEST_SUITE_P(Worlds, RegistrationOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(RegistrationOfSeveral, BlocksOfDifferentSizesAreAMismatch) {
  on_ranks(world(), [](ProcessGroup& group) {
    Numbers numbers(group, group.rank() == 0 ? 10 : 20);
    expect_error(Errc::mismatch, {"register_memory", "40 and 80 bytes"},
                 [&] { (void)group.register_memory(numbers.view()); });
    expect_usable(group);
  });
}

class RegistrationCompared : public RegistrationKinds {};
INSTANTIATE_TEST_SUITE_P(Worlds, RegistrationCompared, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

TEST_P(RegistrationCompared, ARefusalOfOneRankIsToldToTheOthers) {
  on_ranks(world(), [](ProcessGroup& group) {
    Numbers numbers(group, 10);
    TensorView block = numbers.view();
    const bool refuses = group.rank() == group.size() - 1;
    if (refuses) block.data = nullptr;
    expect_error(refuses ? Errc::invalid_argument : Errc::mismatch, {"register_memory", "null"},
                 [&] { (void)group.register_memory(block); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
