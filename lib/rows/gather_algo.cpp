#include "rows/gather_algo.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include <tutti/coalesce.hpp>

#include "group/refuse.hpp"
#include "group/validate.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

constexpr std::array<std::string_view, gather_algo_count> names{
    "automatic", "native", "direct", "ring", "padded", "broadcasts"};

/// One line of the table; the first that fits counts.
struct Line {
  std::string_view backend;  // "*": every one.
  GatherAlgo algo;
  std::string_view because;
};
// Measured: docs/gathering.md. A backend whose own uneven all_gather is not the fastest gets a
// line.
constexpr Line table[] = {
    {"local", GatherAlgo::native, "one copy from memory to memory"},
    {"gloo", GatherAlgo::native, "direct or a segmented ring: its own table, in tutti info"},
    {"*", GatherAlgo::native, "the backend knows its transport"},
};

}  // namespace

std::string_view name_of(GatherAlgo algo) noexcept {
  const auto index = static_cast<std::size_t>(algo);
  return index < names.size() ? names[index] : "unknown algorithm";
}

std::optional<GatherAlgo> parse_gather_algo(std::string_view name) noexcept {
  if (name == "auto") return GatherAlgo::automatic;
  const auto it = std::ranges::find(names, name);
  if (it == names.end()) return std::nullopt;
  return static_cast<GatherAlgo>(it - names.begin());
}

GatherAlgo choose_gather_algo(const ProcessGroup& group, const RowLayout& /*layout*/,
                              std::size_t /*row_bytes*/) {
  for (const auto& line : table)
    if (line.backend == "*" || line.backend == group.backend()) return line.algo;
  return GatherAlgo::native;
}

std::string describe_gather_table() {
  std::string text = fmt::format("{:<10}{:<12}{}\n", "backend", "algorithm", "because");
  for (const auto& line : table)
    text += fmt::format("{:<10}{:<12}{}\n", line.backend, name_of(line.algo), line.because);
  return text;
}

}  // namespace tutti

namespace tutti::internal {
namespace {

constexpr std::int64_t segment_bytes = std::int64_t{256} << 10;
/// Segments on their way from the previous rank, at most.
constexpr std::size_t ahead = 8;
/// Of the point-to-point messages below; callers have the others.
constexpr int gather_tag = INT32_MAX - 1;

struct Plan {
  ProcessGroup& group;
  ConstTensorView local;
  TensorView out;
  const RowLayout& layout;
  const CallOptions& options;

  TensorView block(int rank) const { return rows_of(out, layout.offset(rank), layout[rank]); }
  void place_own() const {
    const auto own = block(group.rank());
    copy_rows(group, own.data, local.data, own.bytes(), options.stream);
  }
};

void direct(const Plan& plan) {
  const int size = plan.group.size();
  const int me = plan.group.rank();
  std::vector<Work> works;
  for (int i = 1; i < size; ++i) {  // Nobody is everybody's first peer.
    const int from = (me + size - i) % size;
    if (plan.layout[from] != 0)
      works.push_back(plan.group.recv_async(plan.block(from), from, gather_tag, plan.options));
  }
  for (int i = 1; i < size && plan.layout[me] != 0; ++i)
    works.push_back(plan.group.send_async(plan.local, (me + i) % size, gather_tag, plan.options));
  plan.place_own();
  Work::all(works).wait();
}

std::int64_t segment_rows(const Plan& plan) {
  const auto row = static_cast<std::int64_t>(plan.out.row_bytes());
  return std::max<std::int64_t>(1, segment_bytes / std::max<std::int64_t>(1, row));
}

/// What goes around: the segments of rank `first`'s block, then of the rank before it, and so on.
std::vector<TensorView> items(const Plan& plan, int first) {
  const int size = plan.group.size();
  const auto rows = segment_rows(plan);
  std::vector<TensorView> all;
  for (int step = 0; step < size - 1; ++step) {
    const int rank = (first + size - step) % size;
    for (std::int64_t at = 0; at < plan.layout[rank]; at += rows)
      all.push_back(
          rows_of(plan.out, plan.layout.offset(rank) + at, std::min(rows, plan.layout[rank] - at)));
  }
  return all;
}

void ring(const Plan& plan) {
  const int size = plan.group.size();
  const int me = plan.group.rank();
  const int next = (me + 1) % size;
  const int prev = (me + size - 1) % size;
  plan.place_own();
  // What comes is what goes, less this rank's own block at the front and next's at the end.
  const auto in = items(plan, prev);
  const auto out = items(plan, me);
  std::deque<Work> coming;
  std::deque<Work> going;
  std::size_t posted = 0;
  std::size_t sent = 0;
  std::size_t here = 0;
  const auto step = segment_rows(plan);
  const auto own = static_cast<std::size_t>((plan.layout[me] + step - 1) / step);
  const auto post = [&] {
    for (; posted < std::min(in.size(), here + ahead); ++posted)
      coming.push_back(plan.group.recv_async(in[posted], prev, gather_tag, plan.options));
  };
  // A send may wait until the next rank receives, and that one for this rank: so nobody waits for a
  // send before everything has come, and how far sends run ahead of what came is limited instead.
  const auto may_send = [&] {
    return here == in.size() ? out.size() : std::min({out.size(), own + here, here + 2 * ahead});
  };
  post();
  while (sent < out.size() || here < in.size()) {
    for (; sent < may_send(); ++sent) {
      going.push_back(plan.group.send_async(out[sent], next, gather_tag, plan.options));
      while (going.size() > 2 * ahead && (here == in.size() || going.front().done())) {
        going.front().wait();
        going.pop_front();
      }
    }
    if (here == in.size()) continue;
    coming.front().wait();
    coming.pop_front();
    ++here;
    post();
  }
  for (auto& work : going) work.wait();
}

void padded(const Plan& plan) {
  const auto most = plan.layout.max();
  const int size = plan.group.size();
  auto& memory = plan.group.memory();
  const auto stream = plan.options.stream;
  Tensor mine;
  Tensor all;
  make_or_refuse(plan.group, {.kind = Operation::all_gather}, plan.options, [&] {
    mine = Tensor(memory, plan.local.shape.with_rows(most), plan.local.dtype, stream);
    std::int64_t rows = 0;
    if (__builtin_mul_overflow(most, std::int64_t{size}, &rows))
      failf(Errc::count_overflow, "{} rows of the largest rank x {} ranks exceed 2^63 - 1", most,
            size);
    all = Tensor(memory, plan.local.shape.with_rows(rows), plan.local.dtype, stream);
  });
  // Nothing of the caller's travels but its rows.
  const auto bytes = plan.local.bytes();
  const std::vector<std::byte> zeros(mine.bytes() - bytes);
  copy_rows(plan.group, mine.data(), plan.local.data, bytes, stream);
  copy_rows(plan.group, static_cast<std::byte*>(mine.data()) + bytes, zeros.data(), zeros.size(),
            stream);
  plan.group.all_gather(mine, all, most, plan.options);
  for (int r = 0; r < size; ++r) {
    const auto to = plan.block(r);
    copy_rows(plan.group, to.data, rows_of(all.view(), r * most, plan.layout[r]).data, to.bytes(),
              stream);
  }
}

void broadcasts(const Plan& plan) {
  plan.place_own();
  Coalesce together(plan.group);
  std::vector<Work> works;
  for (int r = 0; r < plan.group.size(); ++r)
    if (plan.layout[r] != 0)
      works.push_back(plan.group.broadcast_async(plan.block(r), r, plan.options));
  together.launch().wait();
  Work::all(works).wait();
}

bool fits(ProcessGroup& group, const ConstTensorView& local, const TensorView& out,
          const RowLayout& layout, const CallOptions& options) {
  Op op{.kind = Operation::all_gather, .in = local, .out = out, .rows = layout};
  try {
    validate(op, {group.rank(), group.size(), group.memory().device()}, options);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

TensorView rows_of(const TensorView& whole, std::int64_t first, std::int64_t count) {
  return {static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(first) * whole.row_bytes(),
          whole.dtype, whole.shape.with_rows(count), whole.device};
}

ConstTensorView rows_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count) {
  return {static_cast<const std::byte*>(whole.data) +
              static_cast<std::size_t>(first) * whole.row_bytes(),
          whole.dtype, whole.shape.with_rows(count), whole.device};
}

ConstTensorView as_rows(const ConstTensorView& array) {
  if (array.shape.ndim() != 0) return array;
  return {array.data, array.dtype, {1}, array.device};
}

void copy_rows(ProcessGroup& group, void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes != 0 && to != from) group.memory().copy(to, from, bytes, stream);
}

void gather_rows_by(GatherAlgo algo, ProcessGroup& group, const ConstTensorView& local,
                    const TensorView& out, const RowLayout& layout, const CallOptions& options) {
  if (algo == GatherAlgo::automatic) algo = choose_gather_algo(group, layout, out.row_bytes());
  // What native would refuse (shapes, dtypes, overlap) it also refuses for the others.
  if (algo == GatherAlgo::native || group.size() == 1 || out.shape.numel() == 0 ||
      !fits(group, local, out, layout, options))
    return group.all_gather(local, out, layout, options);
  const Plan plan{group, local, out, layout, options};
  switch (algo) {
    case GatherAlgo::direct:
      return direct(plan);
    case GatherAlgo::ring:
      return ring(plan);
    case GatherAlgo::padded:
      return padded(plan);
    case GatherAlgo::broadcasts:
      return broadcasts(plan);
    case GatherAlgo::automatic:
    case GatherAlgo::native:
      break;
  }
  failf(Errc::invalid_argument, "gather algorithm {} is unknown; there are {}",
        static_cast<int>(algo), gather_algo_count);
}

}  // namespace tutti::internal
