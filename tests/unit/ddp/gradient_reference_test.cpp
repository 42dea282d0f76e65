#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/ddp/gradient_reducer.hpp>

#include "conformance/ddp/host_network.hpp"
#include "support/ranks.hpp"
#include "support/recorded.hpp"

// Compares with the gradients of torch's DistributedDataParallel in tests/data/ddp/gradients.txt,
// which tests/data/ddp/record_gradients.py has made.

namespace tutti::test {
namespace {

struct Case {
  Recorded head;
  std::vector<Recorded> steps;
};

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  for (const Recorded& line : read_recorded(RECORDED "/../ddp/gradients.txt"))
    if (line.words == "step")
      cases.back().steps.push_back(line);
    else
      cases.push_back({line, {}});
  return cases;
}

template <typename T>
class Training {
 public:
  Training(const Case& c, ProcessGroup& group)
      : case_(c), group_(group), network_(0), views_(c.head.integer("views") != 0) {
    std::size_t at = 0;
    for (auto& values : network_.values)
      for (T& v : values) v = static_cast<T>(c.head.numbers.at(0).at(at++));
    auto options = small_buckets();
    options.gradient_as_bucket_view = views_;
    options.find_unused_parameters = has_unused();
    reducer_.emplace(group, network_.parameters(), options);
  }

  void step(std::size_t number) {
    const auto rows = rows_of(case_.steps.at(number).numbers.at(index(group_.rank())));
    const auto micro = static_cast<std::size_t>(case_.head.integer("micro"));
    const std::size_t part = rows.size() / micro;
    const double weight = 1.0 / static_cast<double>(rows.size());
    network_.zero_gradients();
    for (std::size_t i = 0; i < micro; ++i) {
      std::optional<ddp::GradientReducer::NoSync> scope;
      if (i + 1 < micro) scope.emplace(reducer_->no_sync());
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * part);
      network_.backward({begin, begin + static_cast<std::ptrdiff_t>(part)}, weight,
                        [&](std::size_t id) { mark(id, number); });
      reducer_->finish();
    }
    compare(case_.steps[number].numbers.at(index(group_.size())));
    network_.update(0.3);
  }

 private:
  using Row = typename HostNetwork<T>::Row;

  bool has_unused() const { return case_.head.integer("unused") != 0; }
  bool has_hidden(std::size_t step) const {
    return !has_unused() || step == 0 || step == 3 ||
           (step == 1 && group_.rank() != group_.size() - 1);
  }

  static std::vector<Row> rows_of(const std::vector<double>& numbers) {
    std::vector<Row> rows;
    const std::vector<T> all(numbers.begin(), numbers.end());
    for (auto at = all.begin(); at != all.end(); at += 8)
      rows.push_back({{at, at + 6}, {at + 6, at + 8}});
    return rows;
  }

  void mark(std::size_t id, std::size_t step) {
    if (id < 2 && !has_hidden(step)) return;
    const TensorView place = views_ ? reducer_->gradient(id) : network_.gradient(id);
    std::ranges::copy(network_.gradients[id], static_cast<T*>(place.data));
    reducer_->mark_ready(id, place);
  }

  /// Takes the reduced gradients.
  void compare(const std::vector<double>& expected) {
    std::size_t at = 0;
    for (std::size_t id = 0; id < 4; ++id) {
      const auto* const reduced = static_cast<const T*>(reducer_->gradient(id).data);
      for (std::size_t i = 0; i < network_.gradients[id].size(); ++i) {
        network_.gradients[id][i] = reduced[i];
        EXPECT_NEAR(static_cast<double>(reduced[i]), expected.at(at++), 1e-6)
            << "parameter " << id << ", element " << i;
      }
    }
    EXPECT_EQ(at, expected.size());
  }

  const Case& case_;
  ProcessGroup& group_;
  HostNetwork<T> network_;
  const bool views_;
  std::optional<ddp::GradientReducer> reducer_;
};

template <typename T>
void run(const Case& c, ProcessGroup& group) {
  Training<T> training(c, group);
  for (std::size_t step = 0; step < c.steps.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    training.step(step);
  }
}

TEST(GradientReference, EachStepIsThatOfTorch) {
  const auto cases = read_cases();
  ASSERT_EQ(cases.size(), 6u);
  for (const Case& c : cases) {
    ASSERT_EQ(c.steps.size(), 4u);
    on_fresh_ranks(
        {"local", static_cast<int>(c.head.integer("ranks")), false}, [&](ProcessGroup& group) {
          SCOPED_TRACE(c.head.words);
          c.head.options.at("dtype") == "f64" ? run<double>(c, group) : run<float>(c, group);
        });
  }
}

}  // namespace
}  // namespace tutti::test
