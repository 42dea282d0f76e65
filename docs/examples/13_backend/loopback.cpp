// A backend of a program's own: groups of one rank, in which every collective is a copy. The
// program holds it against `local`.

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/tutti.hpp>

namespace {

using tutti::Operation;
using tutti::ReduceOp;

class Loopback final : public tutti::Backend {
 public:
  explicit Loopback(int size) {
    if (size != 1)
      tutti::fail(tutti::Errc::invalid_argument,
                  "loopback: the group has " + std::to_string(size) + " ranks; it must have 1");
  }

  bool supports(Operation operation, tutti::DType, ReduceOp::Kind reduce) const noexcept override {
    if (tutti::is_point_to_point(operation)) return false;
    // Neither of the two is a copy: the identity of the reduction, and the input times a number.
    return operation != Operation::exclusive_scan && reduce != ReduceOp::Kind::premul_sum;
  }

  tutti::Memory& memory() noexcept override { return tutti::host_memory(); }

  tutti::Work launch(std::span<const tutti::Op> ops, const tutti::Call& call) override {
    if (const auto cause = failure())
      throw tutti::Error(tutti::Errc::aborted, "the group is broken: " + cause->message());
    for (const auto& op : ops)
      if (op.out.data != op.in.data)
        memory().copy(op.out.data, op.in.data, op.in.bytes(), call.stream);
    return {};
  }

  // There is no peer to tell, and no peer's call to wait for.
  void refuse(std::span<const tutti::Op>, const tutti::Call&,
              const tutti::Error&) noexcept override {}

  std::unique_ptr<Backend> split(const tutti::SplitInit& init) override {
    return std::make_unique<Loopback>(static_cast<int>(init.ranks.size()));
  }

  void abort(std::string_view why) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_.emplace(tutti::Errc::aborted, std::string(why));
  }

  std::optional<tutti::Error> failure() const override {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<tutti::Error> cause_;
};

using Values = std::vector<float>;
struct Verb {
  const char* name;
  std::function<void(tutti::ProcessGroup& group, const Values& in, Values& out)> call;
};

const std::array verbs{
    Verb{"all_reduce", [](auto& g, auto& in, auto& out) { g.all_reduce(in, out); }},
    Verb{"all_reduce_async",
         [](auto& g, auto& in, auto& out) { g.all_reduce_async(in, out).wait(); }},
    Verb{"reduce", [](auto& g, auto& in, auto& out) { g.reduce(in, out, 0, ReduceOp::max); }},
    Verb{"all_gather", [](auto& g, auto& in, auto& out) { g.all_gather(in, out); }},
    Verb{"reduce_scatter", [](auto& g, auto& in, auto& out) { g.reduce_scatter(in, out); }},
    Verb{"all_to_all", [](auto& g, auto& in, auto& out) { g.all_to_all(in, out); }},
    Verb{"gather", [](auto& g, auto& in, auto& out) { g.gather(in, out, 0); }},
    Verb{"scatter", [](auto& g, auto& in, auto& out) { g.scatter(in, out, 0); }},
    Verb{"scan", [](auto& g, auto& in, auto& out) { g.scan(in, out); }},
    Verb{"exclusive_scan", [](auto& g, auto& in, auto& out) { g.exclusive_scan(in, out); }},
    Verb{"all_reduce in a part",
         [](auto& g, auto& in, auto& out) { g.split(0)->all_reduce(in, out); }},
    Verb{"barrier", [](auto& g, auto&, auto&) { g.barrier(); }},
    Verb{"send", [](auto& g, auto& in, auto&) { g.send(in, 0); }},
};

}  // namespace

int main() {
  auto local = tutti::ProcessGroup::create({.backend = "local"});
  auto loopback = tutti::ProcessGroup::create({.name = "loop"}, std::make_unique<Loopback>(1));
  for (const auto& verb : verbs) {
    const Values in{1, -2, 3.5F};
    Values expected(3);
    Values got(3);
    try {
      verb.call(loopback, in, got);
      verb.call(local, in, expected);
      std::printf("%s: %s\n", verb.name, got == expected ? "equal" : "different");
    } catch (const tutti::Error& error) {
      std::printf("%s: %s\n", verb.name, error.what());
    }
  }
  loopback.abort("the example ends");
  try {
    loopback.barrier();
  } catch (const tutti::Error& error) {
    std::printf("barrier: %s\n", error.what());
  }
}
