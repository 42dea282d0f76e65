#include "group.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "adopt.hpp"
#include "cuda/memory.hpp"
#include "group/record.hpp"
#include "kernels/reduce.hpp"
#include "values/broken.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

using namespace std::chrono_literals;

/// How long ncclCommAbort may take before its callers hear that it has not returned.
constexpr auto abort_bound = 10s;
/// How long the polite end of a communicator may take before it is aborted.
constexpr auto end_bound = 1s;
/// The first look into the store after a call began; later ones come more rarely.
constexpr auto first_look = 20ms;
constexpr auto rarest_look = 1s;
/// How long a call waits for NCCL to queue it before the group's thread goes on with that.
constexpr auto hand_over = 2ms;
/// How long a message of a rank that has left may still be on its way.
constexpr auto last_message = 200ms;

std::chrono::nanoseconds between_looks(std::chrono::nanoseconds age) {
  return std::clamp<std::chrono::nanoseconds>(age / 4, first_look, rarest_look);
}

bool has_collective(std::span<const Op> ops) {
  return std::ranges::any_of(ops, [](const Op& op) { return !is_point_to_point(op.kind); });
}

/// A stream that somebody has made. The default streams wait for others, or are another one on each
/// thread, and NCCL queues what it is given on a thread of its own.
bool is_made(cudaStream_t stream) noexcept {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

/// A call's turn among the collectives of its group.
class Turn {
 public:
  Turn(internal::CallQueue& order, const Call& call) : order_(order), seq_(call.seq) {
    order.enter(call);
  }
  ~Turn() { order_.leave(seq_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  internal::CallQueue& order_;
  std::uint64_t seq_;
};

}  // namespace

std::shared_ptr<Group> Group::make(const BackendInit& init, const Apis& apis) {
  auto group = std::make_shared<Group>(init, apis);
  try {
    group->thread_ = std::thread([group] { group->work(); });
  } catch (const std::system_error& error) {
    (void)abort_all({group->communicator_}, abort_bound);
    internal::failf(Errc::resource_exhausted, "cannot start the group's thread: {}", error.what());
  }
  return group;
}

Group::Group(const BackendInit& init, const Apis& apis)
    : init_(init),
      gpu_(std::make_shared<Gpu>(apis, init.device.index)),
      memory_(init.memory == nullptr ? cuda::cuda_memory(*apis.cuda, init.device.index)
                                     : *init.memory),
      pinned_(gpu_),
      stream_(gpu_),
      agreement_(init.store, init.rank, init.size),
      communicator_(std::make_shared<Communicator>(gpu_)),
      order_(std::make_shared<internal::CallQueue>()),
      self_(gpu_),
      counting_(gpu_, init.size) {
  init_.args.clear();
  try {
    const auto limit = Deadline::after(init.timeout);
    connect(limit);
    token_ = Tensor(memory_, {1}, DType::f32, stream_.handle());
    check(gpu_->cuda(), gpu_->cuda().memset_async(token_.data(), 0, sizeof(float), stream_.get()),
          "cudaMemsetAsync");
    load_kernels();
    counting_.reserve();
    warm_up(limit);
    connected_ = true;
  } catch (const Error& error) {
    const int rank = error.where().rank >= 0 ? error.where().rank : init_.rank;
    const Error cause = agreement_.settle(
        Error(error.code(), error.message(), {.group = init_.name, .rank = rank}));
    (void)abort_all({communicator_}, abort_bound);
    throw Error(cause);
  }
}

void Group::connect(Deadline limit) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  if (init_.adopt) {
    // Before the ranks meet: what one of them refuses, nobody has used.
    check_adopted(*gpu_, init_, limit, [this] { look_before_it_is_made(); });
    agreement_.meet(limit);
    return communicator_->adopt(*init_.adopt);
  }
  agreement_.meet(limit);
  if (const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
      blocking != nullptr && blocking == std::string_view("1"))
    init_.logger(LogLevel::warning,
                 "NCCL_COMM_BLOCKING=1 makes NCCL ignore that this library asks for communicators "
                 "that do not block: deadlines do not hold inside NCCL");
  ncclUniqueId id;
  if (init_.rank == 0) {
    check(gpu_->nccl(), gpu_->nccl().get_unique_id(&id), "ncclGetUniqueId");
    agreement_.store().set("id", std::as_bytes(std::span(&id, 1)));
  } else {
    const auto bytes = agreement_.await("id", limit, "making the group");
    if (bytes.size() != sizeof id)
      internal::failf(Errc::mismatch, "the NCCL id of rank 0 has {} bytes, ours {}", bytes.size(),
                      sizeof id);
    std::memcpy(&id, bytes.data(), sizeof id);
  }
  sole_.emplace(id, init_.device.index, init_.name);
  communicator_->begin(id, init_.rank, init_.size);
  await(limit);
}

void Group::look_before_it_is_made() {
  if (Clock::now() < next_look_) return;
  next_look_ = Clock::now() + first_look;
  if (const auto cause = agreement_.look("making the group")) throw Error(*cause);
}

void Group::await(Deadline limit) {
  communicator_->await(limit, [&] { look_before_it_is_made(); });
}

/// NCCL connects the ranks at their first call, and keeps the caller until all of them have made
/// it: better here than in the first async call.
void Group::warm_up(Deadline limit) {
  const Op op{.kind = Operation::barrier};
  const Call call{.stream = stream_.handle(), .deadline = limit};
  const auto state = make_state({&op, 1}, call, limit);
  queue({&op, 1}, state);
  await_launch(limit);
  for (Pause pause; !state->poll(); pause()) {
    look_before_it_is_made();
    communicator_->look();
    if (limit.expired())
      tutti::fail(Errc::timeout,
                  "the deadline passed before the first call between the ranks ended");
  }
  if (const auto error = state->error()) std::rethrow_exception(error);
}

void Group::load_kernels() {
  try {
    kernels_ = &cuda::fold_kernels(gpu_->apis().driver, gpu_->apis().fold_image);
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    kernels_->load(stream_.get());
  } catch (const Error& error) {  // Most operations do without them.
    kernels_ = nullptr;
    no_kernels_ = error.message();
  }
}

bool Group::supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return can_reduce(dtype, reduce) ||
             (kernels_ != nullptr && internal::can_reduce(dtype, reduce));
    case Operation::scan:
    case Operation::exclusive_scan:
      return kernels_ != nullptr && internal::can_reduce(dtype, reduce);
    default:
      return true;
  }
}

// Calls.

Work Group::launch(std::span<const Op> ops, const Call& call) {
  if (broken_) throw internal::broken(*failure());
  const bool numbered = has_collective(ops) || call.in_order;
  bool captured = false;
  const Deadline limit = call.limit();
  std::vector<Work> works;
  const auto post_all = [&] {
    for (const auto& op : ops)
      if (is_message(op, call)) works.emplace_back(post(op, call, limit));
  };
  try {
    captured = cuda::is_capturing(*gpu_, to_cuda(call.stream));
    if (captured) refuse_capture(ops, call);
    for (const auto& op : ops)
      if (kernels_ == nullptr && needs_kernels(op, init_.size, call.order_fixed))
        internal::failf(Errc::unsupported,
                        "{} {} of {} in the order of {} ranks is done by kernels of the library's "
                        "own, and there are none: {}",
                        name_of(op.kind), name_of(op.reduce.kind), name_of(op.in.dtype), init_.size,
                        no_kernels_);
    if (!call.in_order) post_all();
  } catch (...) {
    if (numbered) order_->skip(call.seq);
    throw;
  }
  std::shared_ptr<EventState> state;
  if (numbered) {
    std::optional<Turn> turn;
    try {
      turn.emplace(*order_, call);
    } catch (const Error& error) {
      // The order is lost for good.
      if (error.code() == Errc::timeout)
        fail(
            internal::call_error(error.code(), init_.name, ops, call, init_.rank, error.message()));
      throw;
    }
    if (call.in_order) post_all();
    std::vector<Op> together;
    for (const auto& op : ops)
      if (!is_message(op, call)) together.push_back(op);
    if (!together.empty()) state = run(together, call, limit, captured);
  }
  if (state != nullptr) {
    if (call.blocking && ops.size() == 1 && ops[0].kind == Operation::barrier) {
      state->wait_until(Deadline::none());  // The thread ends it by the deadline.
      if (const auto error = state->error()) std::rethrow_exception(error);
      return {};
    }
    works.emplace_back(std::move(state));
  }
  return works.size() == 1 ? std::move(works.front()) : Work::all(works);
}

/// What the host takes part in has no place in a graph.
void Group::refuse_capture(std::span<const Op> ops, const Call& call) const {
  for (const auto& op : ops)
    if (op.kind == Operation::barrier || op.kind == Operation::all_gather_bounded ||
        is_message(op, call))
      internal::failf(Errc::unsupported,
                      "a {} cannot be captured into a CUDA graph; call it outside of the capture",
                      name_of(op.kind));
}

/// For calls that are captured on `from`. Not the stream of other calls: they would be captured,
/// too, until the capture ends.
cudaStream_t Group::capture_stream(cudaStream_t from) {
  // This handle is another stream on each thread.
  const auto thread = from == cudaStreamPerThread ? std::this_thread::get_id() : std::thread::id();
  const std::lock_guard lock(mutex_);
  auto& found = capture_streams_[{from, thread}];
  if (found == nullptr) found = std::make_unique<CudaStream>(gpu_);
  return found->get();
}

cudaStream_t Group::stream_of(std::span<const Op> ops, const Call& call) {
  const auto theirs = to_cuda(call.stream);
  // Its caller waits until the call has been queued, so the stream is there. Memory would have to
  // be released on it also when NCCL has not come back from an abort, and the caller has gone.
  const bool direct = call.blocking && is_made(theirs) && std::ranges::none_of(ops, [&](auto& op) {
                        return needs_scratch(op, init_.size, call.order_fixed);
                      });
  const std::lock_guard lock(launch_mutex_);
  if (!direct) {
    catch_up();
    return stream_.get();
  }
  // Also where the last call had a stream of this handle, which may have been another one.
  if (elsewhere_ != nullptr) {
    elsewhere_->hold(theirs);
  } else {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    auto last = gpu_->event();
    last.record(stream_.get());
    last.hold(theirs);
  }
  return theirs;
}

void Group::catch_up() {
  if (elsewhere_ != nullptr) elsewhere_->hold(stream_.get());
  elsewhere_.reset();
}

std::shared_ptr<EventState> Group::make_state(std::span<const Op> ops, const Call& call,
                                              Deadline limit) {
  return std::make_shared<EventState>(order_, gpu_, ops, call, limit);
}

std::shared_ptr<EventState> Group::run(std::span<const Op> ops, const Call& call, Deadline limit,
                                       bool captured) {
  const auto state = make_state(ops, call, limit);
  if (captured) {
    state->capture();
    watch_graphs();  // Also while NCCL keeps this call: a peer may abort that it waits for.
  }
  try {
    {
      const std::lock_guard lock(mutex_);
      next_ = std::max(next_, call.seq + 1);
    }
    queue(ops, state);
  } catch (...) {
    const Error error = internal::to_error(std::current_exception());
    if (error.code() == Errc::timeout)
      fail_late(ops[0], call, state->since());
    else
      fail(internal::call_error(error.code(), init_.name, ops, call, init_.rank, error.message()));
    throw why_ended(ops[0], call);
  }
  if (captured) return state;
  watch(state);
  const auto counts = [](const Op& op) { return op.kind == Operation::all_gather_bounded; };
  if (call.blocking && std::ranges::any_of(ops, counts)) count_rows();
  return state;
}

/// Blocks until the rows of every all_gather_bounded so far have been counted: by the deadlines of
/// these, which the thread sees to.
void Group::count_rows() noexcept {
  try {
    for (Pause pause; !broken_; pause())
      if (advance_launch() && counting_.spread(init_.name, init_.rank)) return;
  } catch (...) {
    fail(internal::to_error(std::current_exception()));
  }
}

void Group::queue(std::span<const Op> ops, const std::shared_ptr<EventState>& state) {
  const bool captured = state->is_captured();
  std::optional<DeviceScope> scope;
  std::optional<cuda::RelaxedCapture> relaxed;
  if (captured) {
    scope.emplace(gpu_->cuda(), gpu_->index());
    relaxed.emplace(gpu_->cuda());
  }
  await_launch(state->limit());  // The call before it.
  auto turn = gpu_->turn(state->limit());
  {
    const auto& call = state->call();
    const auto stream = captured ? capture_stream(to_cuda(call.stream)) : stream_of(ops, call);
    const OpContext context{*gpu_,      stream,        memory_, init_.rank,
                            init_.size, token_.data(), kernels_};
    const std::lock_guard lock(launch_mutex_);
    launch_.emplace(context, communicator_, ops, state, std::move(turn), counting_);
    if (!captured && stream != stream_.get()) {
      state->run_on_its_stream();
      elsewhere_ = state;
    }
  }
  if (captured) return await_launch(state->limit());  // The capture may end when this returns.
  // Where NCCL waits for the other ranks, the thread goes on: this one may have to serve them.
  const auto enough = Clock::now() + hand_over;
  for (Pause pause; !advance_launch(); pause()) {
    if (Clock::now() > enough) return;
    if (broken_) throw internal::broken(*failure());
  }
}

bool Group::advance_launch() {
  const std::lock_guard lock(launch_mutex_);
  if (launch_ && launch_->advance()) launch_.reset();
  return !launch_;
}

void Group::await_launch(Deadline limit) {
  for (Pause pause; !advance_launch(); pause()) {
    if (broken_) throw internal::broken(*failure());
    if (!connected_) look_before_it_is_made();
    if (limit.expired()) tutti::fail(Errc::timeout, "the deadline passed inside NCCL");
  }
  if (broken_) throw internal::broken(*failure());  // It was taken away, not queued.
}

std::shared_ptr<EventState> Group::post(const Op& op, const Call& call, Deadline limit) {
  const auto state = make_state({&op, 1}, call, limit);
  try {
    const bool sends = op.kind == Operation::send;
    Message message{state, gpu_->event(), sends ? const_cast<void*>(op.in.data) : op.out.data,
                    sends ? op.in.bytes() : op.out.bytes()};
    {
      const DeviceScope scope(gpu_->cuda(), gpu_->index());
      message.input.record(to_cuda(call.stream));
    }
    if (op.peer == init_.rank) {
      self_.post(std::move(message));
    } else {
      const auto to = channel(op);
      to->post(std::move(message));
      to->advance();
    }
  } catch (...) {
    const Error error = internal::to_error(std::current_exception());
    fail(internal::call_error(error.code(), init_.name, {&op, 1}, call, init_.rank,
                              error.message()));
    throw why_ended(op, call);
  }
  watch(state);
  return state;
}

std::shared_ptr<Channel> Group::channel(const Op& op) {
  const bool sends = op.kind == Operation::send;
  const std::lock_guard lock(mutex_);
  if (failure_) throw internal::broken(*failure_);
  auto& found = channels_[{sends, op.peer, op.tag}];
  if (found == nullptr)
    found = std::make_shared<Channel>(gpu_, agreement_.store(),
                                      fmt::format("id/{}.{}.{}", sends ? init_.rank : op.peer,
                                                  sends ? op.peer : init_.rank, op.tag),
                                      sends, memory_);
  return found;
}

void Group::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  try {
    agreement_.tell(fmt::format("refused {}: {}", describe(ops[0], call), why.message()));
  } catch (...) {  // It is only for error texts.
  }
  if (call.in_order || has_collective(ops)) order_->skip(call.seq);
}

void Group::watch(const std::shared_ptr<EventState>& state) {
  std::unique_lock lock(mutex_);
  if (ended_) {
    lock.unlock();
    return state->finish(std::make_exception_ptr(error_of(state->op(), state->call())));
  }
  if (failure_) state->doom();
  pending_.push_back(state);
  if (pending_.size() == 1) changed_.notify_all();
}

/// Nobody sees a graph run. What NCCL or a peer says is looked for from now on, call or not.
void Group::watch_graphs() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_graphs_, true)) changed_.notify_all();
}

// Failures.

std::optional<Error> Group::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string Group::describe(const Op& op, const Call& call) const {
  // A root receives what the others send; in a roll call all of them are in one call.
  if (is_point_to_point(op.kind) && !is_message(op, call))
    return fmt::format("the messages of call #{} on group '{}'", call.seq, init_.name);
  return fmt::format("{} #{} on group '{}'", name_of(op.kind),
                     is_point_to_point(op.kind) ? op.seq : call.seq, init_.name);
}

void Group::abort(std::string_view why) noexcept {
  fail(Error(Errc::aborted, fmt::format("rank {} aborted the group: {}", init_.rank, why),
             {.group = init_.name, .rank = init_.rank}));
}

void Group::fail(const Error& mine) noexcept {
  if (broken_) return;
  const bool placed = mine.where().rank >= 0;
  break_with(agreement_.settle(
      placed ? mine
             : Error(mine.code(), mine.message(), {.group = init_.name, .rank = init_.rank})));
}

void Group::fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept {
  if (broken_) return;
  const bool pair = is_message(op, call);
  const auto text = pair ? fmt::format("the deadline passed; rank {} has not made its side of {}",
                                       op.peer, internal::describe({&op, 1}, call))
                         : std::string("the deadline passed");
  const Error mine = internal::call_error(Errc::timeout, init_.name, {&op, 1}, call,
                                          pair ? op.peer : init_.rank, text);
  if (pair || init_.size == 1) return fail(mine);
  // Long enough for the others to look into the store once.
  const auto patience = between_looks(Clock::now() - since) + 3 * first_look;
  break_with(agreement_.call_the_roll(mine, describe(op, call), patience));
}

void Group::break_with(const Error& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = cause;
    broken_ = true;
  }
  changed_.notify_all();
  order_->fail(cause.code() == Errc::aborted ? cause : internal::broken(cause));
}

Error Group::error_of(const Op& op, const Call& call) const noexcept {
  std::string late;
  Error cause(Errc::aborted, "");
  {
    const std::lock_guard lock(mutex_);
    cause = *failure_;
    late = late_;
  }
  const auto mine = internal::call_error(cause.code(), init_.name, {&op, 1}, call, -1, "");
  const auto& where = cause.where();
  const bool own = where.group == mine.where().group && where.seq == mine.where().seq &&
                   where.operation == mine.where().operation;
  const Error said = own || cause.code() == Errc::aborted ? cause : internal::broken(cause);
  return late.empty() ? said : Error(said.code(), said.message() + late, said.where());
}

Error Group::why_ended(const Op& op, const Call& call) const noexcept {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }
  return error_of(op, call);
}

// The thread.

std::vector<std::shared_ptr<Channel>> Group::channels() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Channel>> all;
  for (const auto& [key, channel] : channels_) all.push_back(channel);
  return all;
}

Communicators Group::communicators() const {
  Communicators all{communicator_};
  for (const auto& channel : channels()) all.push_back(channel->communicator());
  return all;
}

void Group::work() {
  cuda::use_device(gpu_->cuda(), gpu_->index());
  // It asks events at any time, also while another thread captures. None of them is captured.
  const cuda::RelaxedCapture relaxed(gpu_->cuda());
  auto active = Clock::now();
  std::size_t before = 0;
  for (;;) {
    States states;
    {
      std::unique_lock lock(mutex_);
      const auto awake = [&] { return stop_ || !pending_.empty() || (failure_ && !ended_); };
      changed_.wait(lock, [&] { return awake() || has_graphs_; });
      if (!changed_.wait_for(lock, awake() ? 0s : rarest_look, awake)) {
        lock.unlock();
        look_at_graphs();
        continue;
      }
      if (stop_ && (pending_.empty() || ended_) && (!failure_ || ended_)) return;
      states = pending_;
    }
    if (broken_) {
      end_everything(states);
      continue;
    }
    if (before == 0) next_look_ = Clock::now() + first_look;
    try {
      tick(states);
    } catch (...) {
      fail(internal::to_error(std::current_exception()));
      continue;
    }
    const auto now = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(pending_, [](const auto& state) { return state->HostState::done(); });
      if (pending_.size() != before) active = now;
      before = pending_.size();
    }
    states.clear();  // Without the lock: what ended may own groups.
    // What has just begun ends soon, what has not ended for long does not.
    const auto pause = std::clamp<std::chrono::nanoseconds>((now - active) / 8, 50us, 5ms);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pause, [this] { return failure_.has_value(); });
  }
}

void Group::look_at_graphs() noexcept {
  if (broken_) return;
  try {
    communicator_->look();
    if (const auto cause = agreement_.look("")) break_with(*cause);
  } catch (...) {
    fail(internal::to_error(std::current_exception()));
  }
}

void Group::tick(const States& states) {
  // A caller that is inside it goes on by itself.
  if (std::unique_lock lock(launch_mutex_, std::try_to_lock); lock && launch_ && launch_->advance())
    launch_.reset();
  for (const auto& channel : channels()) channel->advance();
  counting_.spread(init_.name, init_.rank);
  for (const auto& state : states) {
    if (!state->poll()) continue;
    const auto error = state->error();
    if (error && internal::breaks_group(internal::to_error(error).code()))
      std::rethrow_exception(error);
  }
  communicator_->look();
  const auto now = Clock::now();
  for (const auto& state : states) {
    if (state->limit().time() > now || state->poll()) continue;
    return fail_late(state->op(), state->call(), state->since());
  }
  if (now >= next_look_) look_around(states, now);
}

void Group::look_around(const States& states, Clock::time_point now) {
  const auto pending = std::ranges::find_if(states, [](const auto& s) { return !s->poll(); });
  if (pending == states.end()) return;
  const EventState& oldest = **pending;
  next_look_ = now + between_looks(now - oldest.since());
  const auto collective = std::ranges::find_if(
      states, [](const auto& s) { return !s->is_message() && !s->HostState::done(); });
  if (const auto cause = agreement_.look(
          collective == states.end() ? std::string()
                                     : describe((*collective)->op(), (*collective)->call())))
    return break_with(*cause);
  for (const auto& [rank, ended] : agreement_.departed()) {
    const auto since = gone_since_.try_emplace(rank, now).first->second;
    for (const auto& state : states) {
      const bool needs = state->is_message()
                             ? state->op().peer == rank && now - since > last_message
                             : state->call().seq >= ended;
      if (!needs || state->poll()) continue;
      return fail(internal::call_error(Errc::peer_lost, init_.name, {&state->op(), 1},
                                       state->call(), rank,
                                       fmt::format("rank {} has left the group", rank)));
    }
  }
}

/// Whether the streams of the group have nothing left to do before this moment.
bool Group::stand_still(Deadline limit) noexcept {
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    std::vector<cudaStream_t> streams{stream_.get(), self_.stream(), counting_.stream()};
    for (const auto& channel : channels()) streams.push_back(channel->stream());
    {
      const std::lock_guard lock(launch_mutex_);
      // Of a call that has not been queued the caller still waits, so its stream is there.
      if (launch_ && !launch_->is_captured())
        streams.push_back(launch_->stream());
      else
        catch_up();
    }
    for (const auto stream : streams) {
      auto end = gpu_->event();
      end.record(stream);
      for (Pause pause; !end.done(); pause())
        if (limit.expired()) return false;
    }
  } catch (...) {  // The device is lost, and with it all that it was doing.
  }
  return true;
}

void Group::end_everything(const States& states) noexcept {
  for (const auto& state : states)
    if (!state->poll()) state->doom();
  const auto limit = Deadline::after(abort_bound);
  const bool aborted = abort_all(communicators(), abort_bound);
  const bool in_time = aborted && stand_still(limit);
  {
    // NCCL may have been queuing it: what it uses stays while anything moves.
    const std::lock_guard lock(launch_mutex_);
    if (launch_) launch_->give_up();
    if (in_time) {
      launch_.reset();
      counting_.forget();
    }
  }
  States left;
  {
    const std::lock_guard lock(mutex_);
    if (!in_time)
      late_ = fmt::format(
          "; {} within {} s, so the device may still write to the arrays of this "
          "call: end the process",
          aborted ? "the streams of the group do not stand still after the abort"
                  : "ncclCommAbort has not returned",
          abort_bound.count());
    left.swap(pending_);
    ended_ = true;
  }
  changed_.notify_all();
  for (const auto& state : left)
    state->finish(std::make_exception_ptr(error_of(state->op(), state->call())));
}

void Group::leave() noexcept {
  const bool on_thread = std::this_thread::get_id() == thread_.get_id();
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(left_, true)) return;
    stop_ = true;
    changed_.notify_all();
  }
  if (on_thread)
    thread_.detach();  // The last reference died in a continuation; the thread ends by itself.
  else if (thread_.joinable())
    thread_.join();
  order_->stop();
  if (broken_) return;
  // Nothing was under way here, so nobody has looked; but what is given back has to be alive.
  if (init_.adopt && agreement_.look("")) return (void)abort_all(communicators(), abort_bound);
  end_registrations();
  agreement_.leave(next_);
  end_all(communicators(), end_bound);
}

}  // namespace tutti::backend::nccl
