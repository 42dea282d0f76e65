#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "group/core.hpp"
#include "values/fail.hpp"

// Calls with one array per rank on a side. The backends take one array, so a side whose arrays do
// not lie one behind the other goes through a scratch array in the group's memory.

namespace [[gnu::visibility("default")]] tutti {
namespace {

using Lengths = std::vector<std::int64_t>;

/// Throws unless `list` has one valid array for each rank, all of the dtype of `in`.
template <typename View>
void check_list(const char* name, std::span<const View> list, const char* dtype_of, DType dtype,
                const internal::Bounds& bounds) {
  if (std::ssize(list) != bounds.size)
    internal::failf(Errc::invalid_argument, "{} has {} arrays; the world size is {}", name,
                    list.size(), bounds.size);
  for (std::size_t r = 0; r < list.size(); ++r) {
    internal::check_array(fmt::format("{}[{}]", name, r).c_str(), list[r], bounds.device);
    if (list[r].dtype != dtype)
      internal::failf(Errc::invalid_argument, "{}[{}] is {} and {} is {}; they must be equal", name,
                      r, name_of(list[r].dtype), dtype_of, name_of(dtype));
  }
}

template <typename View>
Lengths lengths_of(std::span<const View> list) {
  Lengths lengths;
  for (const auto& array : list) lengths.push_back(array.shape.numel());
  return lengths;
}

/// The sum of the lengths. @throws Error count_overflow.
std::int64_t total_of(const char* name, const Lengths& lengths) {
  std::int64_t total = 0;
  for (const auto n : lengths)
    if (__builtin_add_overflow(total, n, &total))
      internal::failf(Errc::count_overflow, "{}: the elements of all arrays exceed 2^63 - 1", name);
  return total;
}

/// The address of the first array if each begins where the one before it ends; otherwise null.
template <typename View>
auto one_behind_the_other(std::span<const View> list) -> decltype(View::data) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(View::data)>>,
                                  const std::byte, std::byte>;
  Byte* first = nullptr;
  Byte* next = nullptr;
  for (const auto& array : list) {
    if (array.bytes() == 0) continue;
    auto* const data = static_cast<Byte*>(array.data);
    if (first == nullptr)
      first = data;
    else if (data != next)
      return nullptr;
    next = data + array.bytes();
  }
  return first;
}

/// The scratch arrays of one call, and where their elements go.
struct Scratches {
  Memory& memory;
  Stream stream;
  Tensor in{};
  Tensor out{};
  std::vector<TensorView> outs{};  // Empty: the call writes into them itself.

  void copy_out() {
    const auto* from = static_cast<const std::byte*>(out.data());
    for (const auto& to : outs) {
      if (to.bytes() != 0) memory.copy(to.data, from, to.bytes(), stream);
      from += to.bytes();
    }
  }
};

/// Checks the lists of a call and sets the arrays of its Op.
using PrepareLists = std::function<void(Op&, Scratches&)>;

Work issue_lists(internal::Core& core, Op op, const CallOptions& options, bool async,
                 const PrepareLists& prepare) {
  // Its copies follow the collective, so they cannot be part of a launch with others.
  if (core.collects_here())
    internal::failf(Errc::invalid_argument,
                    "{}: group '{}' is collecting calls for a Coalesce, which takes one array per "
                    "side; pass one, or call launch() first",
                    name_of(op.kind), core.options().name);
  const auto scratches = std::make_shared<Scratches>(Scratches{core.memory(), options.stream});
  const auto fill_in = [&](Op& its) {
    if (async && core.bounds().device.type != DeviceType::cpu)
      internal::failf(Errc::unsupported,
                      "{}_async with a list of arrays works on host memory only; the blocking form "
                      "does not block the host on a device",
                      name_of(its.kind));
    prepare(its, *scratches);
  };
  using Wait = internal::Core::Wait;
  Work work = core.issue(op, options, async ? Wait::nothing : Wait::stream, fill_in);
  if (scratches->in.data() == nullptr && scratches->outs.empty()) return work;
  if (async) return std::move(work).then([scratches] { scratches->copy_out(); });
  scratches->copy_out();
  return {};
}

void prepare_gather(const internal::Bounds& bounds, const ConstTensorView& in,
                    std::span<const TensorView> outs, Op& op, Scratches& scratches) {
  internal::check_array("in", in, bounds.device);
  check_list("outs", outs, "in", in.dtype, bounds);
  for (std::size_t r = 0; r < outs.size(); ++r)
    if (outs[r].shape.numel() != in.shape.numel())
      internal::failf(Errc::invalid_argument, "outs[{}] is {} and in is {}; they must be equal", r,
                      to_string(outs[r].shape), to_string(in.shape));
  op.in = in.shape.ndim() == 0 ? ConstTensorView(in.data, in.dtype, {1}, in.device) : in;
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(op.in.shape.rows(), std::int64_t{bounds.size}, &rows))
    internal::failf(Errc::count_overflow, "outs: {} rows x {} ranks exceed 2^63 - 1",
                    op.in.shape.rows(), bounds.size);
  const auto shape = op.in.shape.with_rows(rows);
  auto* const whole = one_behind_the_other(outs);
  const auto& own = outs[static_cast<std::size_t>(bounds.rank)];
  const auto bytes = in.bytes() * outs.size();
  if (whole != nullptr &&
      (in.data == own.data || internal::disjoint(in.data, in.bytes(), whole, bytes))) {
    op.out = TensorView(whole, in.dtype, shape, bounds.device);
    return;
  }
  scratches.outs.assign(outs.begin(), outs.end());
  scratches.out = Tensor(scratches.memory, shape, in.dtype, scratches.stream);
  op.out = scratches.out;
}

void prepare_exchange(const internal::Bounds& bounds, std::span<const ConstTensorView> ins,
                      std::span<const TensorView> outs, const Lengths& sent,
                      const Lengths& received, Op& op, Scratches& scratches) {
  const auto dtype = ins.empty() ? DType::u8 : ins[0].dtype;
  check_list("ins", ins, "ins[0]", dtype, bounds);
  check_list("outs", outs, "ins[0]", dtype, bounds);
  op.send_rows = sent;
  op.rows = received;
  const auto in_shape = Shape::vector(total_of("ins", sent));
  const auto out_shape = Shape::vector(total_of("outs", received));
  op.in = ConstTensorView(one_behind_the_other(ins), dtype, in_shape, bounds.device);
  op.out = TensorView(one_behind_the_other(outs), dtype, out_shape, bounds.device);
  auto& memory = scratches.memory;
  const auto stream = scratches.stream;
  // all_to_all does not work in place, but lists may share memory.
  if (op.in.data == nullptr ||
      !internal::disjoint(op.in.data, op.in.bytes(), op.out.data, op.out.bytes())) {
    scratches.in = Tensor(memory, in_shape, dtype, stream);
    auto* to = static_cast<std::byte*>(scratches.in.data());
    for (const auto& array : ins) {
      if (array.bytes() != 0) memory.copy(to, array.data, array.bytes(), stream);
      to += array.bytes();
    }
    op.in = scratches.in;
  }
  if (op.out.data != nullptr) return;
  scratches.outs.assign(outs.begin(), outs.end());
  scratches.out = Tensor(memory, out_shape, dtype, stream);
  op.out = scratches.out;
}

Work gather_lists(internal::Core& core, const ConstTensorView& in, std::span<const TensorView> outs,
                  const CallOptions& options, bool async) try {
  return issue_lists(core, {.kind = Operation::all_gather, .in = in}, options, async,
                     [&](Op& op, Scratches& scratches) {
                       prepare_gather(core.bounds(), in, outs, op, scratches);
                     });
} catch (const std::bad_alloc&) {  // Outside of the call: the peers may wait in it.
  core.end_for_lack_of_memory(name_of(Operation::all_gather));
}

Work exchange_lists(internal::Core& core, std::span<const ConstTensorView> ins,
                    std::span<const TensorView> outs, const CallOptions& options, bool async) try {
  const auto sent = lengths_of(ins);
  const auto received = lengths_of(outs);
  Op op{.kind = Operation::all_to_all};
  op.in.dtype = ins.empty() ? DType::u8 : ins[0].dtype;
  return issue_lists(core, op, options, async, [&](Op& its, Scratches& scratches) {
    prepare_exchange(core.bounds(), ins, outs, sent, received, its, scratches);
  });
} catch (const std::bad_alloc&) {
  core.end_for_lack_of_memory(name_of(Operation::all_to_all));
}

}  // namespace

void ProcessGroup::all_gather(const ConstTensorView& in, std::span<const TensorView> outs,
                              const CallOptions& options) {
  (void)gather_lists(core(), in, outs, options, false);
}

Work ProcessGroup::all_gather_async(const ConstTensorView& in, std::span<const TensorView> outs,
                                    const CallOptions& options) {
  return gather_lists(core(), in, outs, options, true);
}

void ProcessGroup::all_to_all(std::span<const ConstTensorView> ins,
                              std::span<const TensorView> outs, const CallOptions& options) {
  (void)exchange_lists(core(), ins, outs, options, false);
}

Work ProcessGroup::all_to_all_async(std::span<const ConstTensorView> ins,
                                    std::span<const TensorView> outs, const CallOptions& options) {
  return exchange_lists(core(), ins, outs, options, true);
}

}  // namespace tutti
