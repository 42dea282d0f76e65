// Messages of another length than the receiver expects. Collectives cannot send them, unless the
// hashes of two different calls are equal.

#include <chrono>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mesh/group.hpp"
#include "support/ranks.hpp"
#include "ucx/rendezvous.hpp"

namespace tutti::test {
namespace {

using backend::mesh::TransportError;

struct Lengths {
  std::size_t sent;
  std::size_t expected;
};

class UcxLength : public testing::TestWithParam<Lengths> {};
INSTANTIATE_TEST_SUITE_P(Bytes, UcxLength,
                         testing::Values(Lengths{16, 8}, Lengths{8, 16}, Lengths{0, 8},
                                         Lengths{8, 0}, Lengths{100'000, 50'000},
                                         Lengths{50'000, 100'000},
                                         Lengths{std::size_t{4} << 20, std::size_t{2} << 20},
                                         Lengths{std::size_t{2} << 20, std::size_t{4} << 20}),
                         [](const auto& c) {
                           return std::to_string(c.param.sent) + "_for_" +
                                  std::to_string(c.param.expected);
                         });

std::shared_ptr<backend::mesh::Mesh> mesh_of(const std::shared_ptr<Store>& store, int rank) {
  const BackendInit init{.store = store,
                         .rank = rank,
                         .size = 2,
                         .name = "lengths",
                         .timeout = 20s,
                         .logger = [](LogLevel, std::string_view) {}};
  return backend::ucx::make_mesh(init, {"tcp,self"});
}

// Once the receive is there before the message, and once after it.
TEST_P(UcxLength, ThatDiffersIsNamedWithBothNumbers) {
  const auto sent = GetParam().sent;  // Clang 14 lets no lambda capture a structured binding.
  const auto expected = GetParam().expected;
  for (const bool early : {true, false}) {
    const auto store = make_memory_store();
    RankBarrier barrier(2);
    on_threads(2, [&](int rank) {
      auto group = std::make_shared<backend::mesh::Group>();
      group->mesh = mesh_of(store, rank);
      group->name = "lengths";
      group->rank = rank;
      group->ranks = {0, 1};
      auto& pool = *std::pmr::new_delete_resource();
      const auto limit = Deadline::after(10s);
      std::vector<std::byte> data(std::max(sent, expected) + 1);
      if (rank == 0) {
        if (early) barrier.wait();
        const auto message = group->mesh->message(pool, 1, data.data(), sent, {});
        message->send(7);
        if (!early) barrier.wait();
        try {
          message->wait(limit);
        } catch (const TransportError&) {  // The other rank has failed the mesh.
        }
        barrier.wait();
        return;
      }
      if (!early) {
        barrier.wait();
        std::this_thread::sleep_for(20ms);
      }
      const auto message = group->mesh->message(pool, 0, data.data(), expected, {});
      message->recv(7, true);
      if (early) barrier.wait();
      try {
        message->wait(limit);
        ADD_FAILURE() << "the length was not noticed";
      } catch (const TransportError& error) {
        EXPECT_EQ(error.kind, TransportError::Kind::length);
        EXPECT_EQ(error.sent, sent);
        EXPECT_EQ(error.expected, expected);
        const Op op{.kind = Operation::barrier};
        const Error named = group->failed(error, {&op, 1}, {.seq = 3});
        EXPECT_EQ(named.code(), Errc::mismatch);
        EXPECT_EQ(named.where().rank, 0);
        EXPECT_NE(named.message().find("rank 0 sent " + std::to_string(sent) +
                                       " bytes, and rank 1 expects " + std::to_string(expected)),
                  std::string::npos)
            << named.what();
      }
      barrier.wait();
    });
  }
}

TEST(UcxLengths, AtMostTheArrayAreReceived) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    const auto mesh = mesh_of(store, rank);
    std::vector<int> data(4, rank);
    auto& pool = *std::pmr::new_delete_resource();
    const auto message = mesh->message(pool, 1 - rank, data.data(), rank == 0 ? 8 : 16, {});
    rank == 0 ? message->send(7) : message->recv(7, false);
    message->wait(Deadline::after(10s));
    if (rank == 1) {
      EXPECT_EQ(data, (std::vector{0, 0, 1, 1}));
    }
  });
}

}  // namespace
}  // namespace tutti::test
