#include "conformance/cells.hpp"

// Memory::lifetime(): a Tensor may outlive the group whose memory it is of.

namespace tutti::test {
namespace {

class MemoryOfGroups : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MemoryOfGroups, testing::ValuesIn(worlds()), CaseName());

TEST_P(MemoryOfGroups, LivesAsLongAsATensorOfIt) {
  PerRank<std::vector<Tensor>> kept(GetParam().size);
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    auto& tensors = kept[group.rank()];
    tensors.emplace_back(group.memory(), Shape{1000}, DType::f32);
    tensors.emplace_back(group.registrable_memory(), Shape{1000}, DType::f32);
    group.barrier();
  });
  drop_shared_groups();
  for (int rank = 0; rank < GetParam().size; ++rank)
    for (Tensor& tensor : kept[rank]) {
      EXPECT_NE(tensor.data(), nullptr);
      if (tensor.device() == Device()) static_cast<float*>(tensor.data())[999] = 7;
      tensor = Tensor();  // The release is the memory's.
    }
}

TEST_P(MemoryOfGroups, RegistrableMemoryIsMemoryWhereNothingIsGained) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    Tensor block(group.registrable_memory(), Shape{64}, DType::f32);
    Registration registration = group.register_memory(block);
    if (registration.kind() == RegistrationKind::none) {
      EXPECT_EQ(&group.registrable_memory(), &group.memory());
    }
  });
}

}  // namespace
}  // namespace tutti::test
