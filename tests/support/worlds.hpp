#pragma once

#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

namespace tutti::test {

/// The configuration of a case: a backend of the table, a world size and a mode.
struct World {
  std::string backend;
  int size = 1;
  bool checked = false;
};

/// "local_normal_w3": the tail of a case's name, for --gtest_filter.
std::string to_string(const World& world);
std::ostream& operator<<(std::ostream& out, const World& world);

/// Every backend of the table that can run here, in both modes, at each size.
std::vector<World> worlds(std::initializer_list<int> sizes = {1, 2, 3, 4});
/// The same with at least two ranks.
std::vector<World> worlds_of_several();
/// The worlds in which a difference between ranks is found before the data moves: `local` and `shm`
/// always, the others in checked mode.
std::vector<World> worlds_that_compare();
/// The worlds in which a call that one rank refuses is an error on all, and the group stays usable
/// if all ranks wait in the call: those that compare, `gloo`, `tcp`, `ucx` and `hier`.
std::vector<World> worlds_that_refuse();

/// GroupOptions::backend for a name in the table, or one of hier: ucx is `ucx:shm`, because this
/// machine need have no InfiniBand.
std::string backend_here(const std::string& backend);

/// True for "hier:shm+gloo" and the like. Their ranks have the hosts that TUTTI_HOSTS names.
bool is_hier(const std::string& backend);

/// True when TUTTI_TEST_REDUCED is set: fewer dtypes, sizes and ranks, for runs under a sanitizer.
bool reduced();
/// The factor for the time by which a call may be late: 5 if reduced(), otherwise 1 to 5 by the
/// processes that want to run on each core.
double patience();
/// True when TUTTI_TEST_REDUCED is "0": every dtype in checked mode too.
bool everything();

/// The backends that reduce as a left fold, rounded once, also without order_fixed.
bool always_order_fixed(const std::string& backend);

/// True if a backend supports CallOptions::reproducible.
bool reproduces(const std::string& backend);
/// True if a backend supports CallOptions::order_fixed for all of its reductions.
bool can_fix_order(const std::string& backend);

/// True if a backend has this reduction. NCCL without kernels of nvcc lacks some (docs/nccl.md);
/// the other backends have every reduction with a meaning.
bool reduces(const std::string& backend, DType dtype, ReduceOp::Kind kind);

/// The backends whose sub-groups use the connections of their parent, so that they break together.
bool shares_fate(const std::string& backend);

/// The name of a case for INSTANTIATE_TEST_SUITE_P: its parameter as text.
struct CaseName {
  template <typename Param>
  std::string operator()(const testing::TestParamInfo<Param>& info) const {
    return to_string(info.param);
  }
};

}  // namespace tutti::test
