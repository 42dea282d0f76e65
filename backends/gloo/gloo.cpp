// The backend of host memory between processes, over TCP. Gloo's transport carries the messages;
// the collectives are those of lib/collectives (docs/design/0003-gloo-and-launching.md).

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <memory_resource>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

#include "collectives/algorithms.hpp"
#include "group.hpp"
#include "group/host_calls.hpp"
#include "group/mailbox.hpp"
#include "group/record.hpp"
#include "on_cuda.hpp"
#include "pairs.hpp"
#include "sigpipe.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"
#include "values/hash.hpp"

namespace tutti::backend::gloo {
namespace {

/// Memory that a group's calls use one after another.
class Scratch {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      data_.reset();
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// The messages of one collective of a group.
class CallWire final : public collectives::Wire {
 public:
  /// The messages of operation `index` of the call. `sizes_differ`: ranks may expect different
  /// sizes of one message although their calls agree. Messages then match only if their sizes are
  /// equal.
  CallWire(const Group& group, const Call& call, std::size_t index, bool sizes_differ,
           Scratch& scratch, std::pmr::memory_resource& pool)
      : group_(group),
        call_(group.call_id(call)),
        slot_(group.slot(call, index)),
        sizes_differ_(sizes_differ),
        limit_(call.limit()),
        scratch_(scratch),
        sends_(&pool),
        recvs_(&pool) {}

  int rank() const noexcept override { return group_.rank; }
  int size() const noexcept override { return group_.size(); }
  void send(int to, const void* data, std::size_t bytes) override {
    // Gloo's buffers are not const. Gloo does not write to a buffer that it sends.
    sends_.emplace_back(*group_.mesh, group_.mesh_rank(to), const_cast<void*>(data), bytes, call_)
        .send(slot_of(bytes));
  }
  void recv(int from, void* data, std::size_t bytes) override {
    recvs_.emplace_back(*group_.mesh, group_.mesh_rank(from), data, bytes, call_)
        .recv(slot_of(bytes));
  }
  void wait_recv() override {
    recvs_.front().wait(limit_);
    recvs_.pop_front();
  }
  void wait_sends(std::size_t left) override {
    for (; sends_.size() > left; sends_.pop_front()) sends_.front().wait(limit_);
  }
  std::byte* scratch(std::size_t bytes) override { return scratch_.at_least(bytes); }

 private:
  std::uint64_t slot_of(std::size_t bytes) const noexcept {
    if (!sizes_differ_) return slot_;
    internal::Hash hash;
    hash.add(slot_);
    hash.add(bytes);
    return hash.value();
  }

  const Group& group_;
  std::uint64_t call_;
  std::uint64_t slot_;
  bool sizes_differ_;
  Deadline limit_;
  Scratch& scratch_;
  std::pmr::list<Mesh::Message> sends_;  // Oldest first.
  std::pmr::list<Mesh::Message> recvs_;
};

class GlooBackend final : public HostBackend {
 public:
  GlooBackend(std::shared_ptr<const Group> group, Memory& memory)
      : HostBackend(group->name, group->rank),
        memory_(memory),
        group_(std::move(group)),
        to_itself_(std::make_shared<internal::Mailbox>(
            group_->name, group_->size(),
            [group = group_](const Error& why) { group->mesh->fail({.cause = why}); })),
        waiter_threads_(std::make_shared<WaiterThreads>()),
        listener_(std::make_shared<const Mesh::Listener>(
            [queue = calls().queue(), box = to_itself_](const Error& cause) {
              queue->fail(cause);
              box->fail(cause);
            })) {
    mesh().listen(listener_);
  }

  ~GlooBackend() override {
    bool pending = false;
    for (const auto& weak : pairs())
      if (const auto pair = weak.lock()) pending = pair->cancel() || pending;
    to_itself_->fail(internal::group_destroyed());
    // The transport cannot cancel a posted message, so the other groups of the mesh fail too.
    if (pending && !alone_on_mesh()) abandon_messages();
    stop();
  }

  Memory& memory() noexcept override { return memory_; }

  std::unique_ptr<Backend> split(const SplitInit& init) override {
    auto part = std::make_shared<Group>();
    part->name = init.name;
    part->rank = init.rank;
    if (init.ranks.size() == 1) {
      part->mesh = Mesh::make(MeshInit{});
      part->ranks = {0};
    } else {
      part->mesh = group_->mesh;
      for (const int r : init.ranks) part->ranks.push_back(group_->mesh_rank(r));
    }
    return std::make_unique<GlooBackend>(std::move(part), memory_);
  }

  void abort(std::string_view why) noexcept override {
    mesh().fail(
        {.cause = Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", rank(), why),
                        {.group = group(), .rank = rank()})});
  }
  std::optional<Error> failure() const override { return group_->mesh->failure(); }
  std::string transport() const override {
    return group_->size() == 1 ? "" : "tcp/" + mesh().interface().name;
  }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    const BlockSigpipe quiet;
    std::optional<CallWire> wire;  // Destroyed after failed() has returned.
    // Counts collectives only, because ranks may have different numbers of sends and receives.
    std::size_t index = 0;
    try {
      for (const auto& op : ops) {
        if (is_point_to_point(op.kind)) continue;
        const bool sizes_differ = op.kind == Operation::all_to_all;
        wire.emplace(*group_, call, index++, sizes_differ, scratch_, calls().pool());
        collectives::run_collective(*wire, op, call.order_fixed);
      }
    } catch (const TransportError& transport_error) {
      throw Error(group_->failed(transport_error, ops, call));
    } catch (const Error& error) {
      // From a custom reduction. Fails the mesh, because the peers wait for this rank's messages.
      throw Error(mesh().fail(
          {.cause = internal::call_error(error.code(), group(), ops, call, rank(),
                                         fmt::format("rank {}: {}", rank(), error.message()))}));
    }
  }

  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    if (op.peer == rank()) {
      auto message = calls().make_state<internal::Mailbox::Message>(to_itself_, op, limit);
      to_itself_->post(message, rank(), call);
      return message;
    }
    const BlockSigpipe quiet;
    auto state = calls().make_state<PairState>(group_, waiter_threads_, op, limit);
    {
      const std::lock_guard lock(pairs_mutex_);
      if (pairs_.size() == pairs_.capacity())
        std::erase_if(pairs_, [](const auto& pair) { return pair.expired(); });
      pairs_.push_back(state);
    }
    state->post();
    return state;
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
      const bool message = part.size() == 1 && is_point_to_point(part[0].kind);
      if (message && part[0].peer == rank()) return to_itself_->refuse(part[0], rank(), why);
      if (group_->size() == 1) return;
      mesh().agreement().refuse({message ? group_->pair_id(part[0]) : group_->call_id(its),
                                 mesh().rank(), internal::refusal_text(part, its, why)});
    });
  }

 private:
  Mesh& mesh() const noexcept { return *group_->mesh; }
  bool alone_on_mesh() const noexcept { return group_->mesh.use_count() == 1; }

  void abandon_messages() noexcept {
    Error cause = internal::group_destroyed();
    try {
      cause =
          Error(Errc::aborted,
                fmt::format("rank {} destroyed the group while a send or receive was in progress",
                            rank()),
                {.group = group(), .rank = rank()});
    } catch (const std::bad_alloc&) {  // The cause then has no rank.
    }
    mesh().fail({.cause = cause});
  }

  std::vector<std::weak_ptr<PairState>> pairs() {
    const std::lock_guard lock(pairs_mutex_);
    return pairs_;
  }

  Memory& memory_;
  std::shared_ptr<const Group> group_;
  Scratch scratch_;
  std::shared_ptr<internal::Mailbox> to_itself_;
  std::mutex pairs_mutex_;
  std::vector<std::weak_ptr<PairState>> pairs_;  // Includes some that have ended.
  std::shared_ptr<WaiterThreads> waiter_threads_;
  std::shared_ptr<const Mesh::Listener> listener_;
};

std::string wanted_interface(const std::string& args) {
  const char* text = std::getenv("TUTTI_IFNAME");
  return args.empty() && text != nullptr ? text : args;
}

Settings settings() {
  return {.batch = internal::environment_switch("TUTTI_GLOO_BATCH", true),
          .reno = internal::environment_switch("TUTTI_GLOO_RENO", true)};
}

std::string details() {
  std::string text;
  try {
    const auto chosen = choose_interface(interfaces(), wanted_interface(""), "");
    text = fmt::format("interface {} ({}), or the one that reaches the store\n", chosen.name,
                       chosen.address);
    const auto [batch, reno] = settings();
    text += fmt::format("I/O thread: {} (TUTTI_GLOO_BATCH)\n",
                        batch ? "SCHED_BATCH" : "the policy of the thread that makes the group");
    text += fmt::format("congestion control: {} (TUTTI_GLOO_RENO)\n",
                        reno ? "reno within a host, otherwise the system's" : "the system's");
  } catch (const Error& error) {
    text += fmt::format("{}\n", error.message());
  }
  return text + collectives::describe_table();
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  if (init.device.type != DeviceType::cpu) return make_on_cuda(init, make);
  auto group = std::make_shared<Group>();
  group->mesh = Mesh::make(MeshInit{.store = init.store,
                                    .group = init.name,
                                    .rank = init.rank,
                                    .size = init.size,
                                    .interface = wanted_interface(init.args),
                                    .settings = settings(),
                                    .limit = Deadline::after(init.timeout),
                                    .logger = init.logger,
                                    .checked = init.checked});
  group->name = init.name;
  group->rank = init.rank;
  group->ranks.resize(static_cast<std::size_t>(init.size));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  return std::make_unique<GlooBackend>(std::move(group),
                                       init.memory == nullptr ? host_memory() : *init.memory);
}

// Returns an error text when the dynamic linker has bound Gloo's functions to another library, as
// to libtorch_cpu.so, which exports another version of Gloo (docs/adapters.md).
std::string foreign_gloo() {
  using Create =
      std::shared_ptr<::gloo::transport::Device> (*)(const ::gloo::transport::tcp::attr&);
  const Create create = &::gloo::transport::tcp::CreateDevice;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(create), &info) == 0 || info.dli_fname == nullptr)
    return {};
  const std::string_view path = info.dli_fname;
  const auto file = path.substr(path.rfind('/') + 1);
  if (!file.starts_with("libtorch")) return {};
  return fmt::format(
      "its functions are those of {}, which has another version of Gloo: link libgloo "
      "before it, or start with LD_PRELOAD=libgloo.so.0",
      path);
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo",
    .summary = "host memory over TCP, any number of machines; gloo:eth0 names the interface",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = foreign_gloo,
    .make = make,
    .details = details,
    .device_count = device_count,
    .stages = stages,
};

}  // namespace tutti::backend::gloo
