#include <cstring>

#include <tutti/losses/clip.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/sup_con.hpp>
#include <tutti/losses/warm_up.hpp>

#include "backends/nccl/staged_groups.hpp"

// Losses over groups on devices. For arrays of the host or of the device, the results equal those
// over a group of host memory bit for bit, and the gradient is on the device of the logits.

namespace tutti::backend {
namespace gloo {
extern const BackendEntry entry;
}
}  // namespace tutti::backend

namespace tutti::test::nccl_double {
namespace {

using losses::Batch;
using losses::LossResult;
using losses::PoolOptions;

/// A loss with its state.
struct Loss {
  std::function<LossResult(ProcessGroup*, const Batch&, const CallOptions&)> call;
  std::function<std::string(ProcessGroup*, const CallOptions&)> save{};
};
/// Calls `loss` over the group, or as one process if `group` is null.
template <typename T, typename... Arrays>
auto over(T&& loss, ProcessGroup* group, const CallOptions& call, const Arrays&... arrays) {
  return group == nullptr ? loss(arrays...) : loss(*group, arrays..., call);
}

struct Kind {
  const char* name;
  std::function<Loss()> make;
  std::int64_t classes = 3;
  bool float_targets = false;  ///< Like the logits, 0 to 1.
  std::int64_t rows = 7;       ///< About so many per rank.
};

template <typename Ranking, typename Options>
Kind ranking_kind(const char* name, Options options, std::int64_t rows = 7) {
  return {name,
          [options] {
            const auto loss = std::make_shared<Ranking>(options);
            return Loss{[loss](auto* group, const auto& batch, const auto& call) -> LossResult {
                          return over(*loss, group, call, batch);
                        },
                        [loss](auto* group, const auto& call) { return loss->save(*group, call); }};
          },
          options.classes, false, rows};
}

Kind warm_up_kind() {
  return {"warm_up", [] {
            losses::WarmUpOptions options{.warmup_steps = 1, .blend_steps = 2};
            options.logger = [](LogLevel, std::string_view) {};
            const auto loss = std::make_shared<losses::WarmUp>(
                losses::CrossEntropy({.classes = 3}),
                std::make_unique<losses::SmoothAp>(losses::SmoothApOptions{
                    .classes = 3, .temperature = 0.5, .pool = {.queue = 9}}),
                options);
            const auto step = std::make_shared<std::int64_t>(0);
            return Loss{[loss, step](auto* group, const auto& batch, const auto& call) {
                          loss->start_step((*step)++);
                          return over(*loss, group, call, batch);
                        },
                        [loss](auto* group, const auto& call) { return loss->save(*group, call); }};
          }};
}

template <typename Focal>
Kind focal_kind(const char* name, bool float_targets) {
  return {name,
          [] {
            return Loss{[](auto* group, const auto& batch, const auto& call) {
              return over(Focal({.reduction = losses::Reduction::none}), group, call,
                          Batch{batch.logits, batch.targets});
            }};
          },
          3, float_targets};
}

/// A product of floats, for builds without Eigen.
void plain_product(const losses::MatrixProduct& p) {
  const auto* a = static_cast<const float*>(p.a);
  const auto* b = static_cast<const float*>(p.b);
  auto* c = static_cast<float*>(p.c);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      c[i * p.c_stride + j] = 0;
      for (std::int64_t k = 0; k < p.k; ++k)
        c[i * p.c_stride + j] += a[i * p.a_stride + k] *
                                 (p.b_transposed ? b[j * p.b_stride + k] : b[k * p.b_stride + j]);
    }
}

/// A loss over features: the logits are anchors, and candidates too if it has some.
template <typename Features, typename Options>
Kind feature_kind(const char* name, Options options) {
  options.engine.gemm = plain_product;
  return {name, [options] {
            const auto loss = std::make_shared<Features>(options);
            return Loss{[loss](auto* group, const auto& batch, const auto& call) {
              losses::FeatureBatch features;
              features.anchors = batch.logits;
              if constexpr (std::is_same_v<Features, losses::SupCon>)
                features.labels = batch.targets;
              else
                features.candidates = batch.logits;
              features.weight = batch.weight;
              auto got = over(*loss, group, call, features);
              LossResult result;
              result.loss = got.loss;
              result.grad = std::move(got.grad_anchors);
              result.per_class = {got.grad_logit_scale};
              return result;
            }};
          }};
}

std::vector<Kind> kinds() {
  constexpr PoolOptions pool{.queue = 12, .max_rows = 20};
  using P = losses::PAucAtBudgetOptions;
  const P p_auc{.alpha = 0.05, .beta = 0.6, .tau_scale = P::Scale::band};
  auto pairwise = p_auc;
  pairwise.surrogate = P::Surrogate::pairwise;
  auto queued = p_auc;
  queued.classes = 3;
  queued.pool = pool;
  const losses::RecallAtQuantileOptions recall{.quantile = 0.2, .temperature = 0.2, .pool = pool};
  return {
      ranking_kind<losses::SmoothAp>(
          "smooth_ap", losses::SmoothApOptions{.classes = 3, .temperature = 0.1, .pool = pool}),
      // Rows that other ranks work on, and that are sent back to their owners.
      ranking_kind<losses::SmoothAp>("smooth_ap of many rows",
                                     losses::SmoothApOptions{.temperature = 0.1}, 500),
      ranking_kind<losses::RecallAtQuantile>("recall_at_quantile", recall),
      // Sums over ranks, no rows.
      ranking_kind<losses::RecallAtQuantile>("recall_at_quantile of many rows", recall, 600),
      ranking_kind<losses::PAucAtBudget>("p_auc_at_budget", queued),
      ranking_kind<losses::PAucAtBudget>("p_auc_at_budget of many rows", pairwise, 600),
      {"cross_entropy",
       [] {
         return Loss{[](auto* group, const auto& batch, const auto& call) {
           return over(losses::CrossEntropy({.classes = 3, .label_smoothing = 0.1}), group, call,
                       batch);
         }};
       }},
      focal_kind<losses::SigmoidFocal>("sigmoid_focal", true),
      focal_kind<losses::SoftmaxFocal>("softmax_focal", false),
      warm_up_kind(),
      feature_kind<losses::Clip>("clip", losses::ClipOptions{.logit_scale = 2}),
      feature_kind<losses::SupCon>("sup_con", losses::SupConOptions{.temperature = 0.5}),
  };
}

/// One rank's rows of one call.
struct Rows {
  std::vector<float> logits;
  std::vector<float> shares;  ///< Targets that are floats.
  std::vector<std::int64_t> targets;
  std::vector<std::uint8_t> iid;
  std::vector<float> weights;
};

/// Uneven; in every call another rank has none.
Rows rows_of(const Kind& kind, int rank, int ranks, int call) {
  const std::int64_t n = (rank + call) % ranks == 0 && ranks > 1
                             ? 0
                             : kind.rows + kind.rows * rank * (call % 2) / 2 + 1;
  std::uint32_t state = 12345U + static_cast<std::uint32_t>(97 * rank + 31 * call);
  const auto next = [&state] { return (state = state * 1664525U + 1013904223U) >> 8; };
  Rows rows;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < kind.classes; ++c) {
      rows.logits.push_back(static_cast<float>(next() % 4000) / 1000 - 2);
      rows.shares.push_back(static_cast<float>(next() % 5) / 4);
    }
    const auto target = static_cast<std::int64_t>(next() % 9);
    rows.targets.push_back(target == 8 ? losses::default_ignore_index
                                       : target % std::max<std::int64_t>(kind.classes, 2));
    rows.iid.push_back(next() % 4 != 0 ? 1 : 0);
    rows.weights.push_back(static_cast<float>(next() % 8) / 4);
  }
  return rows;
}

Batch view_of(const Kind& kind, const Rows& rows, bool training = true) {
  const Shape shape{std::ssize(rows.targets), kind.classes};
  return {view(std::span(rows.logits), shape),
          kind.float_targets ? view(std::span(rows.shares), shape) : ConstTensorView(rows.targets),
          rows.iid, training};
}

/// The result of a call, bit for bit.
struct Outcome {
  double loss = 0;
  std::vector<double> terms{};  ///< Of classes, rows or elements.
  std::vector<losses::ClassStatus> status{};
  std::vector<float> grad{};

  bool is(const Outcome& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
    };
    return std::memcmp(&loss, &other.loss, sizeof loss) == 0 && same(terms, other.terms) &&
           same(status, other.status) && same(grad, other.grad);
  }
};

/// The results of the calls of all kinds on one rank, and the saved states after them.
struct Outcomes {
  std::vector<Outcome> calls{};
  std::vector<std::string> states{};
};

constexpr int call_count = 4;
bool is_training(int call) {
  return call != 2;
}

/// Arrays of a device that are written by kernels, which have not run when this returns.
class OnDevice {
 public:
  explicit OnDevice(const Member& at, std::chrono::nanoseconds takes = {})
      : at_(at), takes_(takes) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    for (const auto& block : blocks_) at_.free(block);
  }

  ConstTensorView put(const ConstTensorView& array) {
    const auto words = static_cast<std::int64_t>((array.bytes() + 3) / 4);
    const auto device = at_.group.memory().device();
    if (words == 0) return {nullptr, array.dtype, array.shape, device};
    const auto source = blocks_.emplace_back(at_.make(words));
    const auto data = blocks_.emplace_back(at_.make(words));
    at_.group.memory().copy(source.data, array.data, array.bytes(), at_.stream());
    copy(at_.compute, static_cast<float*>(data.data), static_cast<float*>(source.data),
         static_cast<std::size_t>(words), takes_);
    return {data.data, array.dtype, array.shape, device};
  }
  Batch put(const Batch& batch) {
    Batch there{put(batch.logits), put(batch.targets), put(batch.iid), batch.training};
    if (batch.weight) there.weight = put(*batch.weight);
    return there;
  }

 private:
  const Member& at_;
  std::chrono::nanoseconds takes_;
  std::vector<TensorView> blocks_;
};

bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes{};
  cuda().pointer_get_attributes(&attributes, data);
  return attributes.type == cudaMemoryTypeDevice;
}

/// The gradient, after it has been found where the logits are.
std::vector<float> read_gradient(const Member* at, const Tensor& grad,
                                 const ConstTensorView& logits) {
  EXPECT_EQ(grad.device(), logits.device);
  EXPECT_EQ(grad.shape(), logits.shape);
  EXPECT_EQ(grad.dtype(), logits.dtype);
  std::vector<float> values(static_cast<std::size_t>(grad.shape().numel()));
  if (values.empty()) return values;
  if (logits.device.type == DeviceType::cpu) {
    std::memcpy(values.data(), grad.data(), grad.bytes());
    return values;
  }
  EXPECT_TRUE(is_device_memory(grad.data()));
  // By a kernel behind the call on its stream, which reads nothing but device memory.
  const TensorView out = at->make(grad.shape().numel());
  copy(at->compute, static_cast<float*>(out.data), static_cast<const float*>(grad.data()),
       values.size());
  values = at->read(out, at->compute);
  at->free(out);
  return values;
}

/// The memory of a rank's arrays. mixed: host or device, different for every array, rank and call.
enum class Where : std::uint8_t { host, device, mixed };

/// All calls of all kinds on one rank. `at` is null where there is no device.
Outcomes call_all(ProcessGroup* group, int rank, int ranks, Where where, const Member* at,
                  const CallOptions& options) {
  Outcomes all;
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Loss loss = kind.make();
    for (int call = 0; call < call_count; ++call) {
      const auto rows = rows_of(kind, rank, ranks, call);
      auto batch = view_of(kind, rows, is_training(call));
      if (call % 2 == 1) batch.weight = rows.weights;
      std::optional<OnDevice> device;
      if (where != Where::host) {
        device.emplace(*at);
        const auto there = device->put(batch);
        // Ranks need not do alike.
        const bool mixed = where == Where::mixed;
        if (!mixed || (rank + call) % 2 == 0) batch.logits = there.logits;
        if (!mixed || call % 2 == 0) batch.targets = there.targets;
        if (!mixed || rank == 0) batch.iid = there.iid;
        if (batch.weight && (!mixed || rank != 0)) batch.weight = there.weight;
      }
      const auto got = loss.call(group, batch, options);
      all.calls.push_back({got.loss, got.per_class.empty() ? got.per_element : got.per_class,
                           got.status, read_gradient(at, got.grad, batch.logits)});
    }
    if (loss.save) all.states.push_back(loss.save(group, options));
  }
  return all;
}

/// The same over host memory, of every rank.
std::vector<Outcomes> over_the_host(int size) {
  const auto store = make_memory_store();
  std::vector<Outcomes> all(static_cast<std::size_t>(size));
  on_threads(size, [&](int rank) {
    auto group = ProcessGroup::create(
        {.backend = "local", .store = store, .rank = rank, .size = size, .name = "host"});
    all[static_cast<std::size_t>(rank)] =
        call_all(&group, rank, size, Where::host, nullptr, {.order_fixed = true});
  });
  return all;
}

void expect_same(const Outcomes& got, const Outcomes& want) {
  ASSERT_EQ(got.calls.size(), want.calls.size());
  for (std::size_t i = 0; i < got.calls.size(); ++i)
    EXPECT_TRUE(got.calls[i].is(want.calls[i]))
        << kinds()[i / call_count].name << ", call " << i % call_count << ": loss "
        << got.calls[i].loss << ", expected " << want.calls[i].loss;
  EXPECT_EQ(got.states, want.states);
}

/// Groups of ranks on devices: the backend nccl, or gloo with arrays that are staged.
struct Transport {
  const char* name;
  std::function<void(int size, const std::function<void(const Member& at)>& body)> run;
};

std::vector<Transport> transports() {
  return {{"nccl", [](int size, const auto& body) { on_groups(size, body); }},
          {"gloo", [](int size, const auto& body) {
             on_members(
                 size, [](int rank) { return rank % 2; },
                 [&](int rank, const auto& store) {
                   return make_staged_group(backend::gloo::entry, rank, size, rank % 2, store);
                 },
                 body);
           }}};
}

class Losses : public Double {};

TEST_F(Losses, OfArraysOfTheHostOrTheDeviceAreThoseOfAGroupOfHostMemory) {
  for (const int size : {1, 2, 3}) {
    const auto want = over_the_host(size);
    for (const auto& transport : transports())
      for (const auto where : {Where::device, Where::mixed, Where::host}) {
        // For gloo the only difference is the group's memory.
        if (where != Where::device && transport.name != std::string_view("nccl")) continue;
        SCOPED_TRACE(std::string(transport.name) + ", arrays " +
                     std::to_string(static_cast<int>(where)));
        transport.run(size, [&](const Member& at) {
          expect_same(call_all(&at.group, at.rank, size, where, &at,
                               {.stream = at.stream(), .order_fixed = true}),
                      want[static_cast<std::size_t>(at.rank)]);
        });
      }
  }
}

/// Calls `loss` with these rows on the device.
LossResult call_on_device(const Member& at, losses::SmoothAp& loss, const Kind& kind,
                          const Rows& rows) {
  OnDevice device(at);
  return loss(at.group, device.put(view_of(kind, rows)), {.stream = at.stream()});
}

TEST_F(Losses, OfArraysThatNothingCanCopyAreRefusedByName) {
  on_groups(1, [](const Member& at) {
    for (const Kind& kind : kinds()) {
      const auto rows = rows_of(kind, 0, 1, 0);
      OnDevice device(at);
      const auto batch = device.put(view_of(kind, rows));
      expect_error(Errc::unsupported,
                   {"s are on cuda:0", "only a group can copy them", "to the host"},
                   [&] { kind.make().call(nullptr, batch, {}); });
    }
    auto host = ProcessGroup::create({.backend = "local", .name = "host"});
    const Kind kind = kinds().front();
    const auto rows = rows_of(kind, 0, 1, 0);
    auto batch = view_of(kind, rows);
    batch.targets.device = {DeviceType::cuda, 0};
    expect_error(Errc::unsupported, {"smooth_ap", "targets are on cuda:0", "works on cpu"},
                 [&] { kind.make().call(&host, batch, {}); });
  });
}

TEST_F(Losses, OfAnotherDeviceAreRefusedOnAllRanksAndTheGroupGoesOn) {
  for (const auto& transport : transports()) {
    SCOPED_TRACE(transport.name);
    transport.run(3, [&](const Member& at) {
      const CallOptions options{.stream = at.stream()};
      for (const Kind& kind : kinds()) {
        SCOPED_TRACE(kind.name);
        const auto rows = rows_of(kind, at.rank, 3, 0);
        const Loss loss = kind.make();
        auto batch = view_of(kind, rows);
        if (at.rank == 1) batch.logits.device = {DeviceType::cuda, 6};
        expect_error(at.rank == 1 ? Errc::unsupported : Errc::mismatch,
                     {"s are on cuda:6, but this group works on cuda:1"},
                     [&] { loss.call(&at.group, batch, options); });
        batch = view_of(kind, rows);
        OnDevice device(at);
        (void)loss.call(&at.group, device.put(batch), options);
      }
    });
  }
}

TEST_F(Losses, WithoutPinnedMemoryAreRefusedOnAllRanksAndTheGroupGoesOn) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    Kind kind = kinds().front();
    kind.rows = 4000;
    const auto rows = rows_of(kind, at.rank, 2, 1);  // Rank 1 has none.
    losses::SmoothAp loss({.classes = kind.classes});
    if (at.rank == 0) set_faults(0, {.pinned_room = 20'000});
    barrier.wait();
    expect_error(at.rank == 0 ? Errc::resource_exhausted : Errc::mismatch,
                 {"smooth_ap", "pinned host memory", "cudaHostAlloc"},
                 [&] { (void)call_on_device(at, loss, kind, rows); });
    barrier.wait();
    if (at.rank == 0) set_faults(0, {});
    barrier.wait();
    (void)call_on_device(at, loss, kind, rows);
  });
}

TEST_F(Losses, CannotBeCapturedAndTheCaptureAndTheGroupGoOn) {
  for (const auto& transport : transports())
    for (const int size : {1, 2}) {
      SCOPED_TRACE(std::string(transport.name) + " of " + std::to_string(size));
      transport.run(size, [&](const Member& at) {
        for (const Kind& kind : kinds()) {
          SCOPED_TRACE(kind.name);
          const auto rows = rows_of(kind, at.rank, size, 0);
          OnDevice device(at);
          const auto there = device.put(view_of(kind, rows));
          const Loss loss = kind.make();
          cuda().stream_synchronize(at.compute);
          EXPECT_EQ(begin_capture(at.compute, cudaStreamCaptureModeThreadLocal), cudaSuccess);
          std::string_view name = kind.name;
          // Of a warm-up it is the part that is asked first.
          name = name == "warm_up" ? "" : name.substr(0, name.find(' '));
          for (const auto& batch : {view_of(kind, rows), there})
            expect_error(Errc::unsupported, {std::string(name), "CUDA graph"},
                         [&] { (void)loss.call(&at.group, batch, {.stream = at.stream()}); });
          Graph graph;
          EXPECT_EQ(end_capture(at.compute, &graph), cudaSuccess);
          EXPECT_NE(graph, nullptr);
          (void)loss.call(&at.group, there, {.stream = at.stream()});
        }
      });
    }
}

}  // namespace
}  // namespace tutti::test::nccl_double
