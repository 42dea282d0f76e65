// Processes and threads of one host, over shared memory (docs/design/host-backends.md).

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "backend/waiting.hpp"
#include "host.hpp"
#include "memory/collectives.hpp"
#include "memory/member.hpp"
#include "memory/reads.hpp"
#include "memory/thresholds.hpp"
#include "messages.hpp"
#include "rendezvous.hpp"
#include "values/cores.hpp"
#include "values/current_error.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::backend::shm {
namespace {

constexpr int most_ranks = 256;  // Whose rings take 277 MB.

class ShmBackend final : public HostBackend {
 public:
  static std::unique_ptr<Backend> make(const BackendInit& init, std::function<void()> watch = {}) {
    const auto member = join(init, std::move(watch));
    try {
      return std::make_unique<ShmBackend>(init, internal::GroupNames(init.name, init.whole),
                                          member);
    } catch (...) {  // The other ranks have a group already.
      (void)member->fail(internal::to_error(std::current_exception()));
      throw;
    }
  }
  ShmBackend(const BackendInit& init, const internal::GroupNames& names,
             std::shared_ptr<Member> member)
      : HostBackend(names.group(), init.rank, names(init.rank)),
        init_(init),
        member_(std::move(member)),
        memory_(init.memory == nullptr ? member_->memory() : *init.memory),
        messages_(std::make_shared<Messages>(member_)) {
    calls().fail_with = [this](const Error& why) { (void)member_->fail(why); };
    member_->on_failure(
        [queue = calls().queue(), weak = std::weak_ptr<Messages>(messages_)](const Error& cause) {
          queue->fail(cause);
          if (const auto messages = weak.lock()) messages->fail(cause);
        });
  }
  ~ShmBackend() override {
    messages_->stop();
    member_->leave();
    stop();
  }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    return operation == Operation::recv_any || HostBackend::supports(operation, dtype, kind);
  }
  bool reproduces() const noexcept override { return true; }
  Memory& memory() noexcept override { return memory_; }
  Memory& registrable_memory() noexcept override { return member_->memory(); }

  /// The sub-group has memory of its own. A member that dies before it has joined is known here.
  std::unique_ptr<Backend> split(const SplitInit& init) override {
    const BackendInit own = init_.part(init);
    const auto watch = [this, ranks = std::vector<int>(init.ranks.begin(), init.ranks.end())] {
      for (const int r : ranks)
        if (member_->has_died(r)) throw Error(member_->fail(dead_error(member_->names(), r)));
    };
    try {
      return make(own, watch);
    } catch (const Error& error) {
      // A process that served the store loses its connections a moment before it has ended.
      const auto soon = Deadline::after(std::chrono::milliseconds(100));
      for (; error.code() == Errc::peer_lost && !soon.expired();
           std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        watch();
      throw;
    }
  }

  void abort(std::string_view why) noexcept override {
    (void)member_->fail(internal::described(Errc::aborted, [&] {
      return Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", shown_rank(), why),
                   {.group = group(), .rank = shown_rank()});
    }));
  }
  std::optional<Error> failure() const override { return member_->failure(); }
  std::string transport() const override { return member_->size() == 1 ? "" : "shared memory"; }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    run_collectives(*member_, ops, call);
  }

  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    auto message = calls().make_state<Messages::Message>(messages_, op, limit);
    messages_->post(message, call);
    return message;
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
      if (part.size() == 1 && is_point_to_point(part[0].kind))
        messages_->refuse(part[0], why);
      else
        member_->refuse(part, its, why);
    });
  }

 private:
  const BackendInit init_;  // For sub-groups.
  std::shared_ptr<Member> member_;
  Memory& memory_;
  std::shared_ptr<Messages> messages_;
};

std::string unavailable() {
  if (process_descriptor(::getpid()).is_open()) return {};
  if (code_of_errno(errno) == Errc::resource_exhausted) return {};  // The rendezvous reports it.
  return "the kernel does not permit pidfd_open() (Linux 5.3), by which a rank detects the death "
         "of a peer";
}

/// Makes the calls of one of two ranks that need all decisions on reads.
ReadChoice choose_reads(const std::string& store, int rank) {
  const auto member = join({.store = make_file_store(store),
                            .rank = rank,
                            .size = 2,
                            .name = "reads",
                            .timeout = std::chrono::seconds(10),
                            .logger = [](LogLevel, std::string_view) {}});
  std::vector<std::byte> data(2 * tested_reads.back());
  std::uint64_t seq = 0;
  for (const auto bytes : tested_reads)
    for (const auto kind : {Operation::broadcast, Operation::all_gather}) {
      const auto block = static_cast<std::int64_t>(bytes);
      const TensorView own(data.data() + static_cast<std::size_t>(rank) * bytes, DType::u8,
                           {block});
      const TensorView all(data.data(), DType::u8, {2 * block});
      const std::vector rows(2, block);
      const Op op = kind == Operation::broadcast
                        ? Op{.kind = kind, .in = own, .out = own, .root = 0}
                        : Op{.kind = kind, .in = own, .out = all, .rows = rows};
      run_collectives(*member, {&op, 1},
                      {.seq = seq++, .deadline = Deadline::after(std::chrono::seconds(10))});
    }
  member->leave();
  return member->reads();
}

/// The decisions on reads of two processes here.
std::string describe_reads_here() try {
  std::string name = (std::filesystem::temp_directory_path() / "tutti-reads-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return {};
  const auto remove = [](const std::string* path) {
    std::error_code ignored;
    std::filesystem::remove_all(*path, ignored);
  };
  const std::unique_ptr<const std::string, decltype(remove)> directory(&name, remove);
  const pid_t peer = ::fork();
  if (peer == 0) {
    try {
      (void)choose_reads(name, 1);
    } catch (const std::exception&) {  // Rank 0 throws then.
    }
    ::_exit(0);
  }
  if (peer < 0) return {};
  bool chosen = false;
  const auto end = [&chosen](const pid_t* process) {
    if (!chosen) ::kill(*process, SIGKILL);  // It may hang: it was forked beside other threads.
    while (::waitpid(*process, nullptr, 0) < 0 && errno == EINTR) {
    }
  };
  const std::unique_ptr<const pid_t, decltype(end)> child(&peer, end);
  const auto reads = describe_reads(choose_reads(name, 0));
  chosen = true;
  return "private arrays that a rank only reads, by a test of 2 processes (TUTTI_SHM_READS):\n" +
         reads;
} catch (const std::exception& error) {
  return fmt::format("private arrays that a rank only reads: the test failed: {}\n", error.what());
}

std::string details() {
  return internal::describe_polling(internal::count_cores({internal::usable_cores()})) +
         describe_thresholds() + describe_reads_here();
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "shm",
    .summary = "processes and threads of one host, over shared memory",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = unavailable,
    .make = [](const BackendInit& init) -> std::unique_ptr<Backend> {
      if (!init.args.empty())
        internal::failf(Errc::invalid_argument,
                        "backend 'shm' takes no arguments, but was given '{}'", init.args);
      if (init.size > most_ranks)
        internal::failf(Errc::unsupported, "backend 'shm' has at most {} ranks, not {}", most_ranks,
                        init.size);
      return ShmBackend::make(init);
    },
    .details = details,
    .receives_from_any = true,
    .most_ranks = most_ranks,
    .unsuited = lack_of_memory,
};

}  // namespace tutti::backend::shm
