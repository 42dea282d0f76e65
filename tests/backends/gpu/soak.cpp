#include "soak.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include <tutti/tensor.hpp>

namespace tutti::gpu {
namespace {

using backend::cuda::check;
using Clock = std::chrono::steady_clock;

/// The first groups leave memory that later ones use again.
constexpr int groups_to_warm_up = 5;

/// An all_reduce of one integer on the rank's own stream.
class SmallSum {
 public:
  SmallSum(const Rank& here, ProcessGroup& group)
      : cuda_(*here.apis.cuda),
        group_(group),
        stream_(std::make_shared<backend::cuda::Gpu>(cuda_, here.device)),
        in_(group.memory(), {1}, DType::i64, stream_.handle()),
        out_(group.memory(), {1}, DType::i64, stream_.handle()),
        want_(std::int64_t{here.size} * (here.size + 1) / 2) {
    const std::int64_t mine = here.rank + 1;
    group.memory().copy(in_.data(), &mine, sizeof mine, stream_.handle());
  }

  /// True if the last of so many results is right.
  bool repeat(std::int64_t calls) {
    check(cuda_, cuda_.memset_async(out_.data(), 0xff, sizeof want_, stream_.get()),
          "cudaMemsetAsync");
    for (std::int64_t i = 0; i < calls; ++i)
      group_.all_reduce(in_, out_, ReduceOp::sum, {.stream = stream_.handle()});
    std::int64_t found = 0;
    group_.memory().copy(&found, out_.data(), sizeof found, stream_.handle());
    return found == want_;
  }

 private:
  const backend::cuda::CudaApi& cuda_;
  ProcessGroup& group_;
  backend::cuda::CudaStream stream_;
  Tensor in_;
  Tensor out_;
  std::int64_t want_;
};

}  // namespace

std::int64_t resident_bytes() {
  std::int64_t all = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

SoakResult soak(const Rank& here, const SoakOptions& options,
                const std::function<MemoryInUse()>& memory) {
  SoakResult result;
  const auto use_a_group = [&](const std::string& name) {
    auto group = make_group(here, name);
    {
      SmallSum sum(here, group);
      if (!sum.repeat(1)) ++result.wrong;
    }
    group.barrier();  // No rank ends its group while another one uses it.
  };
  const auto start = Clock::now();
  const auto goes_on = [&](const std::string& question, std::chrono::nanoseconds limit) {
    return ask_rank_0(here, question, [&] { return Clock::now() - start < limit; });
  };
  for (int i = 0; i < groups_to_warm_up; ++i) use_a_group(fmt::format("soak/first/{}", i));
  MemoryInUse before;
  {
    auto group = make_group(here, "soak/calls");
    SmallSum sum(here, group);
    while (result.calls < options.calls) {
      const auto next = std::min(options.block, options.calls - result.calls);
      if (!sum.repeat(next)) ++result.wrong;
      if (result.calls == 0) {
        meet(here, "soak/before");
        before = memory();
        meet(here, "soak/measured");
      }
      result.calls += next;
      if (!goes_on(fmt::format("soak/block/{}", result.calls), options.limit * 2 / 3)) break;
    }
    group.barrier();
  }
  while (result.groups < options.groups) {
    use_a_group(fmt::format("soak/group/{}", result.groups++));
    if (!goes_on(fmt::format("soak/groups/{}", result.groups), options.limit)) break;
  }
  meet(here, "soak/after");
  const MemoryInUse after = memory();
  meet(here, "soak/end");
  result.growth = {after.resident - before.resident, after.device - before.device};
  return result;
}

std::string fault_of(const SoakResult& result, const SoakOptions& options) {
  if (result.wrong != 0) return fmt::format("{} results are wrong", result.wrong);
  for (const auto& [what, bytes] : {std::pair("resident memory", result.growth.resident),
                                    {"memory of the device", result.growth.device}})
    if (bytes > options.most_growth)
      return fmt::format("{} has grown by {} MiB; the bound is {} MiB", what, bytes >> 20,
                         options.most_growth >> 20);
  return "";
}

std::string to_text(const SoakResult& result, const SoakOptions& options) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "{} of {} calls of 8 bytes, {} of {} groups; resident {:+.1f} MiB, device {:+.1f} MiB",
      result.calls, options.calls, result.groups, options.groups, mib(result.growth.resident),
      mib(result.growth.device));
}

}  // namespace tutti::gpu
