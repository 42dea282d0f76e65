#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend.hpp>
#include <tutti/init.hpp>

#include "c/values.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

struct tutti_registration {
  tutti::Registration registration;
};

namespace tutti::c_abi {
namespace {

GroupOptions group_options(const tutti_group_options& from) {
  GroupOptions o;
  if (from.backend != nullptr) o.backend = from.backend;
  if (from.name != nullptr) o.name = from.name;
  if (from.store != nullptr) o.store = from.store->store;
  if (from.ranks == 0 && from.rank != 0)
    fail(Errc::invalid_argument,
         fmt::format("tutti_group_options: rank is {}, but ranks is 0; set ranks too", from.rank));
  if (from.ranks != 0) {
    o.rank = from.rank;
    o.size = from.ranks;
  }
  o.device = device(from.device_type, from.device_index);
  if (from.timeout_ns != 0) o.timeout = std::chrono::nanoseconds(from.timeout_ns);
  if (from.dead_after_ns != 0)
    o.dead_after = std::chrono::nanoseconds(from.dead_after_ns < 0 ? 0 : from.dead_after_ns);
  if (from.checked != 0) o.checked = from.checked > 0;
  if (from.reproducible != 0) o.reproducible = from.reproducible > 0;
  if (from.log != nullptr)
    o.logger = [log = from.log, context = from.log_context](LogLevel level,
                                                            std::string_view message) {
      log(context, static_cast<std::int32_t>(level), std::string(message).c_str());
    };
  if (from.memory != nullptr) {
    auto memory = make_memory(read(from.memory));
    o.memory = memory.get();
    // The options, with what this function holds, live as long as the group and its sub-groups.
    o.decorate = [memory = std::move(memory)](std::unique_ptr<Backend> backend) { return backend; };
  }
  if (from.communicator != nullptr) {
    o.adopt = AdoptedCommunicator{.communicator = from.communicator};
    if (from.aborting != nullptr)
      o.adopt->aborting = [aborting = from.aborting, context = from.aborting_context] {
        aborting(context);
      };
  }
  return o;
}

GroupOptions group_options(const tutti_group_options* from) {
  return group_options(read(from));
}

/// Sets *to to the group that `make` returns, or to null if it returns none.
template <typename F>
tutti_status give_group(tutti_group** to, F&& make) {
  return guard([&] {
    auto& out = handle(to);
    if (std::optional<ProcessGroup> group = make()) out = new tutti_group{std::move(*group)};
  });
}

}  // namespace
}  // namespace tutti::c_abi

extern "C" {

tutti_status tutti_init(const tutti_group_options* options, tutti_group** group) {
  return give_group(group, [&] {
    const auto from = read(options);
    tutti::InitOptions init{.group = group_options(from)};
    if (from.ranks != 0) {
      init.rank = std::exchange(init.group.rank, 0);
      init.size = std::exchange(init.group.size, 1);
    }
    return tutti::init(init);
  });
}

tutti_status tutti_group_create(const tutti_group_options* options, tutti_group** group) {
  return give_group(group, [&] { return tutti::ProcessGroup::create(group_options(options)); });
}

tutti_status tutti_group_create_all(const tutti_group_options* options, size_t count,
                                    tutti_group** groups) {
  return guard([&] {
    const std::span out(&deref(groups, "an out-parameter"), count);
    for (auto& group : out) group = nullptr;
    std::vector<tutti::GroupOptions> all;
    for (std::size_t i = 0; i < count; ++i)
      all.push_back(group_options(element(&deref(options, "the list of options"), i)));
    auto made = tutti::ProcessGroup::create_all(all);
    for (std::size_t i = 0; i < made.size(); ++i) out[i] = new tutti_group{std::move(made[i])};
  });
}

tutti_status tutti_group_new_member(char member[TUTTI_MEMBER_BYTES]) {
  return guard([&] {
    const auto made = tutti::ProcessGroup::new_member();
    if (made.size() >= TUTTI_MEMBER_BYTES)
      tutti::fail(tutti::Errc::backend, "a member's handle is too long");
    std::memcpy(&deref(member, "an out-parameter"), made.c_str(), made.size() + 1);
  });
}

tutti_status tutti_group_reconfigure(const tutti_group_options* options, const char* own,
                                     const char* const* members, size_t count,
                                     tutti_group** group) {
  return give_group(group, [&] {
    std::vector<std::string> all;
    for (const char* member : list_of(members, count, "the list of members"))
      all.emplace_back(text(member));
    return tutti::ProcessGroup::reconfigure(group_options(options), text(own), all);
  });
}

tutti_status tutti_group_share(const tutti_group* group, tutti_group** same) {
  return give_group(same, [&] { return of(group).share(); });
}

tutti_status tutti_group_free(tutti_group* group) {
  delete group;
  return TUTTI_OK;
}

// Sets *to to a property of `g`, the group. The macro stays in this file.
#define TUTTI_C_GETTER(name, type, value)                              \
  tutti_status tutti_group_##name(const tutti_group* group, type to) { \
    return guard([&] {                                                 \
      const auto& g = of(group);                                       \
      deref(to, "an out-parameter") = value;                           \
    });                                                                \
  }

TUTTI_C_GETTER(rank, int32_t*, g.rank())
TUTTI_C_GETTER(size, int32_t*, g.size())
TUTTI_C_GETTER(local_rank, int32_t*, g.local_rank())
TUTTI_C_GETTER(local_size, int32_t*, g.local_size())
TUTTI_C_GETTER(sequence_number, uint64_t*, g.sequence_number())
TUTTI_C_GETTER(timeout, int64_t*, g.timeout().count())
TUTTI_C_GETTER(name, const char**, g.name().c_str())
TUTTI_C_GETTER(backend, const char**, g.backend().c_str())
TUTTI_C_GETTER(backend_reason, const char**, g.backend_reason().c_str())
#undef TUTTI_C_GETTER

tutti_status tutti_group_set_timeout(tutti_group* group, int64_t ns) {
  return guard([&] { of(group).set_timeout(std::chrono::nanoseconds(ns)); });
}

tutti_status tutti_group_transport(tutti_group* group, const char** transport) {
  return guard([&] {
    auto& out = deref(transport, "an out-parameter");
    group->transport = of(group).transport();
    out = group->transport.c_str();
  });
}

tutti_status tutti_group_supports(const tutti_group* group, int32_t operation, int32_t dtype,
                                  int32_t op, int32_t* supported) {
  return guard([&] {
    const auto& g = of(group);
    const auto kind = enumerator<tutti::Operation>(operation);
    const auto type = enumerator<tutti::DType>(dtype);
    // A newer header may name operations and dtypes that this library does not have.
    const bool known = operation >= 0 && kind <= tutti::Operation::recv_any &&
                       kind != tutti::Operation::all_gather_bounded && size_of(type) != 0;
    const bool yes =
        known && g.supports(kind, type, {.kind = enumerator<tutti::ReduceOp::Kind>(op)});
    deref(supported, "an out-parameter") = yes ? 1 : 0;
  });
}

tutti_status tutti_group_split(tutti_group* group, int32_t color, int32_t key,
                               const tutti_call_options* options, tutti_group** sub) {
  return give_group(sub, [&] { return of(group).split(color, key, Call(options).options()); });
}

tutti_status tutti_group_subset(tutti_group* group, const int32_t* ranks, size_t count,
                                const tutti_call_options* options, tutti_group** sub) {
  return give_group(sub, [&] {
    return of(group).subset(list_of(ranks, count, "the list of ranks"), Call(options).options());
  });
}

tutti_status tutti_group_shrink(tutti_group* group, const int32_t* lost, size_t count,
                                int64_t patience_ns, tutti_group** rest) {
  return give_group(rest, [&] {
    const auto ranks = list_of(lost, count, "the list of lost ranks");
    return patience_ns == 0 ? of(group).shrink(ranks)
                            : of(group).shrink(ranks, std::chrono::nanoseconds(patience_ns));
  });
}

tutti_status tutti_group_abort(tutti_group* group, const char* why) {
  return guard([&] { of(group).abort(text(why)); });
}

tutti_status tutti_group_trace(const tutti_group* group, tutti_result** trace) {
  return give_result(trace, [&](Content& to) {
    std::string lines;
    for (const auto& entry : of(group).trace()) lines += to_string(entry) + '\n';
    to.add(std::string_view(lines));
  });
}

tutti_status tutti_allocate(tutti_group* group, const tutti_array* like, int32_t registrable,
                            tutti_result** result) {
  return give_result(result, [&](Content& to) {
    auto& g = of(group);
    const auto shape = view(&deref(like, "the array"));
    if (size_of(shape.dtype) == 0)
      tutti::fail(tutti::Errc::invalid_argument, fmt::format("dtype {} is unknown", like->dtype));
    to.add(tutti::Tensor(registrable != 0 ? g.registrable_memory() : g.memory(), shape.shape,
                         shape.dtype));
  });
}

tutti_status tutti_register_memory(tutti_group* group, const tutti_array* block,
                                   const tutti_call_options* options,
                                   tutti_registration** registration) {
  return guard([&] {
    auto& out = handle(registration);
    out = new tutti_registration{of(group).register_memory(view(block), Call(options).options())};
  });
}

tutti_status tutti_registration_free(tutti_registration* registration) {
  delete registration;
  return TUTTI_OK;
}

}  // extern "C"
