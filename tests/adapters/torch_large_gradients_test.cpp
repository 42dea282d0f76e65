#include <tutti/adapters/torch/ddp.hpp>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "torch_calls.hpp"

// Gradients of 1 MiB, which the reducer reduces where autograd puts them.

namespace tutti {
namespace {

using libtorch::DistributedDataParallel;
using test::World;

class TorchLargeGradients : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchLargeGradients, testing::ValuesIn(test::worlds_of_adapters()),
                         test::CaseName());

constexpr std::int64_t elements = (1 << 20) / sizeof(double);

/// The gradient of either parameter is that of forward()'s result, unless a test says otherwise.
struct Pair : ::torch::nn::Module {
  Pair()
      : a(register_parameter("a", at::zeros({512, elements / 512}, at::kDouble))),
        b(register_parameter("b", at::zeros({elements}, at::kDouble))) {}
  /// Backward computes the gradient of b first.
  at::Tensor forward() {
    const at::Tensor first = a.view({elements}) * 1;
    return first + b * 1;
  }
  at::Tensor a, b;
};

/// Differs between the ranks, and between elements.
at::Tensor weights(int rank) {
  return at::arange(elements, at::kDouble) * (rank + 1);
}
at::Tensor mean_of_weights(const ProcessGroup& group) {
  return at::arange(elements, at::kDouble) * ((group.size() + 1) / 2.0);
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(actual.defined());
  EXPECT_LE((actual.flatten() - expected.flatten()).abs().max().item<double>(), 1e-6);
}

TEST_P(TorchLargeGradients, AreMeansAndOutliveTheModel) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Pair module;
    const void* place = nullptr;
    {
      DistributedDataParallel model(group, module);
      for (int step = 0; step < 4; ++step) {
        module.zero_grad(step % 2 == 0);
        (model.forward() * weights(group.rank())).sum().backward();
        expect_near(module.a.grad(), mean_of_weights(group));
        expect_near(module.b.grad(), mean_of_weights(group));
        place = module.b.grad().data_ptr();
        EXPECT_EQ(model.reducer().gradient(1).data, place);
      }
    }
    EXPECT_EQ(module.b.grad().data_ptr(), place);
    expect_near(module.b.grad(), mean_of_weights(group));
  });
}

// As of the weight of a torch::nn::Linear: autograd computes a view, whose base nothing else uses.
TEST_P(TorchLargeGradients, OfALinearLayerAreNotCopied) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Pair module;
    const void* computed = nullptr;
    module.a.register_hook([&](const at::Tensor& gradient) { computed = gradient.data_ptr(); });
    DistributedDataParallel model(group, module, {.reducer = {.find_unused_parameters = true}});
    const auto input = at::full({1, elements / 512}, group.rank() + 1.0, at::kDouble);
    input.matmul(module.a.t()).sum().backward();
    EXPECT_EQ(module.a.grad().data_ptr(), computed);
    EXPECT_EQ(model.reducer().gradient(0).data, computed);
    expect_near(module.a.grad(), at::full({elements}, (group.size() + 1) / 2.0, at::kDouble));
  });
}

// Autograd gives a and b views of one gradient.
TEST_P(TorchLargeGradients, OfTwoParametersMayShareMemory) {
  struct Views : Pair {
    at::Tensor forward() { return a.view({elements}) + b.view({elements}); }
  };
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Views module;
    DistributedDataParallel model(group, module);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad(true);
      (model.forward() * weights(group.rank())).sum().backward();
      expect_near(module.a.grad(), mean_of_weights(group));
      expect_near(module.b.grad(), mean_of_weights(group));
    }
  });
}

// On one rank a and b get views of one gradient; the other ranks have no gradient of b.
TEST_P(TorchLargeGradients, ThatShareMemoryOnOneRankHaveTheirOwnResults) {
  struct Views : Pair {
    at::Tensor forward(bool with_b) {
      const at::Tensor x = a.view({elements});
      return with_b ? x + b.view({elements}) : x * 1;
    }
  };
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Views module;
    DistributedDataParallel model(group, module, {.reducer = {.find_unused_parameters = true}});
    for (int step = 0; step < 2; ++step) {
      module.zero_grad(true);
      (model.forward(group.rank() == 0) * weights(group.rank())).sum().backward();
      expect_near(module.a.grad(), mean_of_weights(group));
      expect_near(module.b.grad(), weights(0) / group.size());
    }
  });
}

// The gradient of a is a view of one that b's branch of the graph reads after a's is marked.
TEST_P(TorchLargeGradients, AreNotReducedInMemoryThatTheBackwardReads) {
  struct Branches : Pair {
    at::Tensor forward() {
      const at::Tensor t = b * factor;
      if (t.requires_grad())
        t.register_hook([](const at::Tensor& gradient) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // For the reduction of a.
          return gradient;
        });
      return t + a.view({elements});
    }
    double factor = 0;
  };
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Branches module;
    module.factor = group.rank() + 1;
    double squares = 0;
    for (int rank = 0; rank < group.size(); ++rank) squares += (rank + 1.0) * (rank + 1.0);
    DistributedDataParallel model(group, module,
                                  {.reducer = {.first_bucket_cap = 8, .bucket_cap = 8}});
    for (int step = 0; step < 2; ++step) {  // Then the bucket of a is the first one.
      module.zero_grad(true);
      (model.forward() * weights(group.rank())).sum().backward();
      expect_near(module.a.grad(), mean_of_weights(group));
      expect_near(module.b.grad(), at::arange(elements, at::kDouble) * (squares / group.size()));
    }
  });
}

TEST_P(TorchLargeGradients, MayBePartsOfOneArray) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    Pair module;
    DistributedDataParallel model(group, module);
    const at::Tensor all = at::zeros({2 * elements}, at::kDouble);
    module.a.mutable_grad() = all.narrow(0, 0, elements).view({512, elements / 512});
    module.b.mutable_grad() = all.narrow(0, elements, elements);
    for (int step = 0; step < 3; ++step) {
      all.zero_();
      (model.forward() * weights(group.rank())).sum().backward();
      expect_near(all.narrow(0, 0, elements), mean_of_weights(group));
      expect_near(all.narrow(0, elements, elements), mean_of_weights(group));
    }
  });
}

// The reduction of b is under way when the backward ends by an exception and the gradient is freed.
TEST_P(TorchLargeGradients, LiveUntilTheirReductionEnds) {
  test::on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Pair module;
    std::optional<DistributedDataParallel<Pair>> model;
    model.emplace(group, module,
                  libtorch::DdpOptions{.reducer = {.first_bucket_cap = 8, .bucket_cap = 8}});
    const auto key = module.a.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("interrupted"); });
    const auto backward = [&] { (model->forward() * weights(group.rank())).sum().backward(); };
    // The other ranks wait for the last one, while the gradient is freed.
    if (group.rank() == group.size() - 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_THROW(backward(), std::exception);
    module.zero_grad(true);
    module.a.remove_hook(key);
    std::vector<at::Tensor> others;  // Take the freed memory, if it was freed.
    for (int i = 0; i < 4; ++i) others.push_back(at::full({elements}, 7.0, at::kDouble));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (const at::Tensor& other : others) EXPECT_TRUE((other == 7.0).all().item<bool>());
    group.barrier();
    model.reset();
  });
}

}  // namespace
}  // namespace tutti
