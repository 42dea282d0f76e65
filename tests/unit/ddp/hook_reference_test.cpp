#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/power_sgd.hpp>

#include "support/ranks.hpp"
#include "support/recorded.hpp"

// Compares with the results of torch's hooks on 2 ranks in tests/data/ddp/hooks.txt, which
// tests/data/ddp/record_hooks.py has made.

namespace tutti::test {
namespace {

struct Step {
  std::vector<double> gradients[2];
  std::vector<double> result;
  std::vector<double> drawn;  ///< Every Q drawn by torch, in the order of the matrices.
};

struct Case {
  Recorded head;
  std::string form;
  DType dtype = DType::f32;
  std::vector<Shape> shapes;
  std::vector<Step> steps;

  double option(const std::string& name, double otherwise) const {
    return head.options.contains(name) ? head.number(name) : otherwise;
  }
};

std::vector<Case> read_cases() {
  std::ifstream file(RECORDED "/../ddp/hooks.txt");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string words;
    std::getline(in, words, ';');
    std::vector<std::string> fields;
    for (std::string field; std::getline(in, field, ';');) fields.push_back(field);
    if (words == "step") {
      fields.resize(4);  // After the last ';' the line may end.
      cases.back().steps.push_back(
          {{numbers(fields[0]), numbers(fields[1])}, numbers(fields[2]), numbers(fields[3])});
      continue;
    }
    Case c;
    c.head.words = words;
    std::istringstream all(words);
    std::string word, dtype;
    all >> word >> c.form >> dtype;
    c.dtype = *parse_dtype(dtype);
    while (all >> word) {
      const auto equal = word.find('=');
      c.head.options[word.substr(0, equal)] = word.substr(equal + 1);
    }
    std::istringstream shapes(fields.at(0));
    while (shapes >> word) {
      std::vector<std::int64_t> dims;
      std::istringstream of_shape(word);
      for (std::string dim; std::getline(of_shape, dim, 'x');) dims.push_back(std::stoll(dim));
      c.shapes.emplace_back(dims);
    }
    cases.push_back(c);
  }
  return cases;
}

template <typename T>
void run(const Case& c, ProcessGroup& group) {
  std::size_t step = 0;
  std::size_t next = 0;  // Index in the numbers drawn in this step.
  ddp::PowerSgdOptions options{.rank = static_cast<int>(c.option("rank", 1)),
                               .start_step = static_cast<std::int64_t>(c.option("start", 0)),
                               .min_compression_rate = c.option("rate", 2),
                               .error_feedback = c.option("feedback", 1) != 0,
                               .warm_start = c.option("warm", 1) != 0,
                               .orthogonalization_epsilon = c.option("epsilon", 0),
                               .initial_q = [&](std::size_t, const TensorView& q) {
                                 for (std::int64_t i = 0; i < q.shape.numel(); ++i)
                                   static_cast<T*>(q.data)[i] =
                                       static_cast<T>(c.steps.at(step).drawn.at(next++));
                               }};
  const auto state = std::make_shared<ddp::PowerSgdState>(options);
  const ddp::CommHook power = ddp::power_sgd_hook(state);
  const ddp::CommHook hook = c.form == "fp16"                ? ddp::fp16_compress_hook()
                             : c.form == "fp16_power_sgd"    ? ddp::fp16_compress_wrapper(power)
                             : c.form == "batched_power_sgd" ? ddp::batched_power_sgd_hook(state)
                                                             : power;
  const auto slices = std::make_shared<ddp::Bucket::Slices>();
  std::int64_t count = 0;
  for (std::size_t id = 0; id < c.shapes.size(); ++id) {
    slices->push_back({id, count, c.shapes[id]});
    count += c.shapes[id].numel();
  }
  std::vector<T> buffer(static_cast<std::size_t>(count));
  ddp::Bucket bucket(group, buffer, slices);
  for (; step < c.steps.size(); ++step) {
    const Step& recorded = c.steps[step];
    const auto& mine = recorded.gradients[group.rank()];
    ASSERT_EQ(mine.size(), buffer.size());
    for (std::size_t i = 0; i < mine.size(); ++i) buffer[i] = static_cast<T>(mine[i]);
    bucket.set_step(static_cast<std::int64_t>(step), 2);
    next = 0;
    hook(bucket).wait();
    EXPECT_EQ(next, recorded.drawn.size()) << "step " << step << " drew other Q";
    double largest = 0;
    for (const double x : recorded.result) largest = std::max(largest, std::abs(x));
    // Under the wrapper torch computes in f16.
    const double tolerance = c.form == "fp16_power_sgd" ? 2.5e-3 * largest : 1e-4;
    for (std::size_t i = 0; i < buffer.size(); ++i)
      ASSERT_NEAR(static_cast<double>(buffer[i]), recorded.result.at(i), tolerance)
          << "step " << step << ", element " << i;
  }
}

TEST(HookReference, EachStepIsThatOfTorch) {
  const auto cases = read_cases();
  ASSERT_EQ(cases.size(), 14u);
  for (const Case& c : cases) {
    ASSERT_EQ(c.steps.size(), 5u);
    on_fresh_ranks({"local", 2, false}, [&](ProcessGroup& group) {
      SCOPED_TRACE(c.form + " " + c.head.words);
      c.dtype == DType::f64 ? run<double>(c, group) : run<float>(c, group);
    });
  }
}

}  // namespace
}  // namespace tutti::test
