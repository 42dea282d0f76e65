#include <functional>
#include <limits>

#include <tutti/backend/backend_table.hpp>

#include "conformance/cells.hpp"

// The rank that makes an invalid call refuses it before a byte leaves. Its peers, whose calls are
// valid, get an error with that rank and the reason; the group stays usable.

namespace tutti::test {
namespace {

constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();

struct BadCall {
  std::string name;
  Errc code = Errc::invalid_argument;
  std::vector<std::string> texts;  ///< The text of the refusing rank.
  std::function<Work(ProcessGroup& group, bool bad)> issue;
  int from_size = 1;  ///< With fewer ranks it is valid, or invalid for another reason.
  /// True if all other ranks wait for the refusing one. Otherwise some may finish before the
  /// refusal arrives.
  bool all_wait = true;
};

/// Arrays that outlive the group, because tests share it. Refused calls never access them.
TensorView array(ProcessGroup& group, const Shape& shape, DType dtype = DType::f32) {
  static std::vector<std::byte> host(std::size_t{1} << 16);
  return {host.data() + static_cast<std::size_t>(group.rank()) * 8192, dtype, shape,
          group.memory().device()};
}
TensorView second_array(ProcessGroup& group, const Shape& shape, DType dtype = DType::f32) {
  TensorView view = array(group, shape, dtype);
  view.data = static_cast<std::byte*>(view.data) + 4096;
  return view;
}

std::vector<BadCall> bad_calls() {
  using G = ProcessGroup;
  return {
      {"null_data",
       Errc::invalid_argument,
       {"null", "[4]"},
       [](G& g, bool bad) {
         TensorView data = array(g, {4});
         if (bad) data.data = nullptr;
         return g.all_reduce_async(data);
       }},
      {"wrong_device",
       Errc::invalid_argument,
       {"99"},
       [](G& g, bool bad) {
         TensorView data = array(g, {4});
         if (bad) data.device = {DeviceType::extension, 99};
         return g.all_reduce_async(data);
       }},
      {"unknown_dtype",
       Errc::invalid_argument,
       {"dtype", "77"},
       [](G& g, bool bad) {
         TensorView data = array(g, {4});
         if (bad) data.dtype = static_cast<DType>(77);
         return g.all_reduce_async(data);
       }},
      {"different_dtypes",
       Errc::invalid_argument,
       {"f32", "i32"},
       [](G& g, bool bad) {
         return g.all_reduce_async(array(g, {4}),
                                   second_array(g, {4}, bad ? DType::i32 : DType::f32));
       }},
      {"different_shapes",
       Errc::invalid_argument,
       {"[4]", "[5]"},
       [](G& g, bool bad) { return g.scan_async(array(g, {4}), second_array(g, {bad ? 5 : 4})); },
       1,
       false},
      {"overlapping_arrays",
       Errc::invalid_argument,
       {"overlap"},
       [](G& g, bool bad) {
         TensorView out = second_array(g, {4});
         if (bad) out.data = static_cast<float*>(array(g, {4}).data) + 2;
         return g.all_reduce_async(array(g, {4}), out);
       }},
      {"all_to_all_in_place",
       Errc::invalid_argument,
       {"overlap", "all_to_all"},
       [](G& g, bool bad) {
         const Shape shape{g.size()};
         return g.all_to_all_async(array(g, shape), bad ? array(g, shape) : second_array(g, shape));
       }},
      {"root_too_large",
       Errc::invalid_argument,
       {"root"},
       [](G& g, bool bad) { return g.broadcast_async(array(g, {4}), bad ? g.size() : 0); },
       1,
       false},
      {"root_negative",
       Errc::invalid_argument,
       {"root", "-1"},
       [](G& g, bool bad) {
         return g.reduce_async(array(g, {4}), second_array(g, {4}), bad ? -1 : 0);
       },
       1,
       false},
      {"reduce_op_without_meaning",
       Errc::invalid_argument,
       {"bxor", "f32"},
       [](G& g, bool bad) {
         return g.all_reduce_async(array(g, {4}), bad ? ReduceOp::bxor : ReduceOp::sum);
       }},
      {"unknown_reduce_op",
       Errc::invalid_argument,
       {"99"},
       [](G& g, bool bad) {
         return g.all_reduce_async(
             array(g, {4}), bad ? ReduceOp{static_cast<ReduceOp::Kind>(99), 1} : ReduceOp::sum);
       }},
      {"trailing_dimensions",
       Errc::invalid_argument,
       {"[2, 3]", "4]"},
       [](G& g, bool bad) {
         return g.all_gather_async(array(g, {2, 3}), second_array(g, {2 * g.size(), bad ? 4 : 3}));
       }},
      {"rows_of_another_length",
       Errc::invalid_argument,
       {"rows has", "the world size is"},
       [](G& g, bool bad) {
         const Layout rows(index(g.size()) + (bad ? 1 : 0), 2);
         return g.all_gather_async(array(g, {2}), second_array(g, {2 * g.size()}), rows);
       }},
      {"rows_that_contradict_the_part",
       Errc::invalid_argument,
       {"[2]", "3"},
       [](G& g, bool bad) {
         return g.all_gather_async(array(g, {2}),
                                   second_array(g, {bad ? 3 * g.size() : 2 * g.size()}),
                                   Rows(bad ? 3 : 2));
       }},
      {"rows_that_contradict_the_whole",
       Errc::invalid_argument,
       {"rows", "add up to"},
       [](G& g, bool bad) {
         return g.reduce_scatter_async(array(g, {2 * g.size() + (bad ? 1 : 0)}),
                                       second_array(g, {2}), Rows(2));
       }},
      {"negative_rows",
       Errc::invalid_argument,
       {"-7"},
       [](G& g, bool bad) {
         Layout rows(index(g.size()), 2);
         if (bad) rows[index((g.rank() + 1) % g.size())] = -7;
         return g.all_gather_async(array(g, {2}), second_array(g, {2 * g.size()}), rows);
       }},
      {"rows_that_overflow",
       Errc::count_overflow,
       {std::to_string(huge)},
       [](G& g, bool bad) {
         Layout rows(index(g.size()), 2);
         if (bad) rows[index((g.rank() + 1) % g.size())] = huge;
         return g.all_gather_async(array(g, {2}), second_array(g, {2 * g.size()}), rows);
       },
       2},
      {"bytes_that_overflow",
       Errc::count_overflow,
       {"8"},
       [](G& g, bool bad) {
         return g.all_reduce_async(array(g, {bad ? huge / 2 : 4}, DType::f64));
       }},
      {"send_rows_that_contradict_the_array",
       Errc::invalid_argument,
       {"send_rows"},
       [](G& g, bool bad) {
         return g.all_to_all_async(array(g, {2 * g.size() + (bad ? 1 : 0)}),
                                   second_array(g, {2 * g.size()}), Rows(2), Rows(2));
       }},
      {"rows_that_do_not_divide",
       Errc::invalid_argument,
       {"rows"},
       [](G& g, bool bad) {
         return g.all_to_all_async(array(g, {2 * g.size() + (bad ? 1 : 0)}),
                                   second_array(g, {2 * g.size()}));
       }},
  };
}

struct BadCallCase {
  World world;
  BadCall call;
};
std::string to_string(const BadCallCase& c) {
  return to_string(c.world) + "_" + c.call.name;
}
std::ostream& operator<<(std::ostream& out, const BadCallCase& c) {
  return out << to_string(c);
}
std::vector<BadCallCase> bad_call_cases() {
  std::vector<BadCallCase> cases;
  for (const World& world : worlds_that_refuse())
    for (const BadCall& call : bad_calls())
      if (call.all_wait || world.checked ||
          (!shares_fate(world.backend) && !is_hier(world.backend)))
        cases.push_back({world, call});
  return cases;
}

class Refusal : public testing::TestWithParam<BadCallCase> {};
INSTANTIATE_TEST_SUITE_P(Calls, Refusal, testing::ValuesIn(bad_call_cases()), CaseName());

TEST_P(Refusal, IsToldToThePeersAndLeavesTheGroupUsable) {
  const World& world = GetParam().world;
  const BadCall& call = GetParam().call;
  // One refusing rank suffices for peers that learn of it after 100 ms.
  const bool slow = (shares_fate(world.backend) || is_hier(world.backend)) && !world.checked;
  for (int refusing = slow ? world.size - 1 : 0; refusing < world.size; ++refusing) {
    on_ranks(world, [&](ProcessGroup& group) {
      const std::string who = "rank " + std::to_string(refusing);
      SCOPED_TRACE("refused by " + who);
      if (group.rank() == refusing) {
        const Error error =
            expect_error(call.code, call.texts, [&] { call.issue(group, true).wait(); });
        EXPECT_EQ(error.where().rank, refusing);
        EXPECT_EQ(error.where().group, group.name());
      } else {
        std::vector<std::string> texts = call.texts;
        texts.push_back(who);
        texts.emplace_back("refused");
        const Error error =
            expect_error(Errc::mismatch, texts, [&] { call.issue(group, false).wait(); });
        EXPECT_EQ(error.where().rank, refusing);
      }
      expect_usable(group);
    });
  }
}

class RefusalByAll : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RefusalByAll, testing::ValuesIn(worlds()), CaseName());

// In a group of one rank, blocking or not, the call throws and does nothing else.
TEST_P(RefusalByAll, EveryRankRefusesTheSameBadCall) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    for (const BadCall& call : bad_calls()) {
      if (group.size() < call.from_size) continue;
      expect_error(call.code, call.texts, [&] { call.issue(group, true).wait(); });
    }
    TensorView null(nullptr, DType::f32, {4}, group.memory().device());
    expect_error(Errc::invalid_argument, {"all_reduce", "null"}, [&] { group.all_reduce(null); });
    expect_error(Errc::invalid_argument, {"broadcast", "null"}, [&] { group.broadcast(null, 0); });
    expect_usable(group);
  });
}

TEST_P(RefusalByAll, APeerThatDoesNotExistIsRefusedLocally) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer data(group, DType::f32, {4});
    const std::string size = std::to_string(group.size());
    expect_error(Errc::invalid_argument, {"send", size}, [&] { group.send(data, group.size()); });
    expect_error(Errc::invalid_argument, {"recv", "-1"}, [&] { group.recv(data, -1); });
    expect_error(Errc::invalid_argument, {"tag", "-2"},
                 [&] { (void)group.send_async(data, 0, -2); });
    expect_usable(group);
  });
}

class RefusalOfOne : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RefusalOfOne, testing::ValuesIn(worlds_that_refuse()), CaseName());

// Long before the deadline. A rank that had finished its part gets the error by its next call at
// the latest.
TEST_P(RefusalOfOne, IsToldToRanksThatWaitEvenIfOthersHaveDoneTheirPart) {
  for (const BadCall& call : bad_calls()) {
    if (call.all_wait) continue;
    SCOPED_TRACE(call.name);
    on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
      const int refusing = group.size() - 1;
      const std::string who = "rank " + std::to_string(refusing) + " refused";
      if (group.rank() == refusing) {
        expect_error(call.code, call.texts, [&] { call.issue(group, true).wait(); });
      } else {
        try {
          call.issue(group, false).wait();
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find(who), std::string::npos) << error.what();
        }
      }
      try {
        group.barrier();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(who), std::string::npos) << error.what();
      }
    });
  }
}

class RefusalOfMessages : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RefusalOfMessages, testing::ValuesIn(worlds_that_refuse()),
                         CaseName());

TEST_P(RefusalOfMessages, IsToldToTheReceiver) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    if (group.rank() == 0) {
      TensorView null(nullptr, DType::f32, {4}, group.memory().device());
      expect_error(Errc::invalid_argument, {"send", "null"}, [&] { group.send(null, 1, 2); });
      const Buffer data(group, array_of<float>({5}));
      group.send(data, 1, 2);
    } else if (group.rank() == 1) {
      const Buffer data(group, DType::f32, {4});
      expect_error(Errc::mismatch, {"rank 0", "refused", "null"}, [&] { group.recv(data, 0, 2); });
      const Buffer next(group, DType::f32, {1});
      group.recv(next, 0, 2);
      EXPECT_TRUE(same(next.read(), array_of<float>({5})));
    }
    expect_usable(group);
  });
}

// The peer of the valid half waits for it.
TEST_P(RefusalOfMessages, OfASendrecvWithOneBadPeerIsToldToTheOther) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer in(group, array_of<float>({5}));
    const Buffer out(group, DType::f32, {1});
    const auto ranks = "ranks 0 to " + std::to_string(group.size() - 1);
    if (group.rank() == 0) {
      expect_error(Errc::invalid_argument, {"recv", "peer is -1", ranks},
                   [&] { group.sendrecv(in, 1, out, -1, 3, soon); });
      expect_error(Errc::invalid_argument, {"send", "peer is -1", ranks},
                   [&] { group.sendrecv_async(in, -1, out, 1, 4, soon).wait(); });
      expect_error(Errc::invalid_argument, {"sendrecv", "recv is any_peer", "only recv"},
                   [&] { group.sendrecv(in, 1, out, any_peer, 5, soon); });
      group.sendrecv(in, 1, out, 1, 3, soon);
    } else if (group.rank() == 1) {
      for (const auto& [tag, text] : {std::pair(3, "peer is -1"), {5, "any_peer"}})
        expect_error(Errc::mismatch, {"rank 0", "refused", text},
                     [&, tag = tag] { group.recv(out, 0, tag, soon); });
      expect_error(Errc::mismatch, {"rank 0", "refused", "peer is -1"},
                   [&] { group.send(in, 0, 4, soon); });
      group.sendrecv(in, 0, out, 0, 3, soon);
      EXPECT_TRUE(same(out.read(), array_of<float>({5})));
    }
    expect_usable(group);
  });
}

class Adoption : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Adoption, testing::ValuesIn(worlds({1})), CaseName());

// Adoption of a real communicator is tested with the backend that supports it.
TEST_P(Adoption, WhatIsNoCommunicatorIsRefusedByName) {
  for (const BackendEntry& entry : backends()) {
    if (entry.name != GetParam().backend) continue;
    GroupOptions options = group_options(GetParam(), 0, make_memory_store());
    options.adopt = AdoptedCommunicator{};
    if (entry.adopts)
      expect_error(Errc::invalid_argument, {"to adopt is null"},
                   [&] { ProcessGroup::create(options); });
    else
      expect_error(Errc::unsupported, {"'" + GetParam().backend + "' cannot adopt"},
                   [&] { ProcessGroup::create(options); });
  }
}

}  // namespace
}  // namespace tutti::test
