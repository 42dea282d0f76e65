#include "mesh/mesh.hpp"

#include <memory>
#include <string>

#include <gtest/gtest.h>

// Meshes of one rank, which fail without a peer.

namespace tutti::backend::mesh {
namespace {

const Error cause(Errc::aborted, "rank 0 aborted the group");

TEST(Mesh, TellsItsListenersOnce) {
  const auto mesh = mesh_of_one();
  int heard = 0;
  const auto listener = std::make_shared<const Mesh::Listener>([&](const Error& why) {
    EXPECT_EQ(why.message(), cause.message());
    ++heard;
  });
  mesh->listen(listener);
  EXPECT_FALSE(mesh->cause());
  for (int i = 0; i < 2; ++i) (void)mesh->fail({.cause = cause});
  EXPECT_EQ(heard, 1);
  mesh->listen(listener);
  EXPECT_EQ(heard, 2) << "it has failed already";
}

TEST(Mesh, DoesNotTellADetachedCall) {
  const auto mesh = mesh_of_one();
  auto listener = std::make_shared<const Mesh::Listener>([](const Error&) { FAIL(); });
  mesh->listen(listener);
  listener.reset();
  (void)mesh->fail({.cause = cause});
}

// A failed call releases its continuation, which may own the last reference to a group.
TEST(Mesh, AListenerMayEndItselfAndOthers) {
  const auto mesh = mesh_of_one();
  std::shared_ptr<const Mesh::Listener> first;
  std::shared_ptr<const Mesh::Listener> second;
  const std::string text = "what a listener has captured";
  first = std::make_shared<const Mesh::Listener>([&, text](const Error&) {
    first.reset();
    second.reset();
    EXPECT_EQ(text, "what a listener has captured");
  });
  second = std::make_shared<const Mesh::Listener>([](const Error&) { FAIL(); });
  mesh->listen(first);
  mesh->listen(second);
  (void)mesh->fail({.cause = cause});
  EXPECT_EQ(first, nullptr);
}

TEST(Mesh, AListenerMayListen) {
  const auto mesh = mesh_of_one();
  int heard = 0;
  const auto inner = std::make_shared<const Mesh::Listener>([&](const Error&) { ++heard; });
  const auto outer =
      std::make_shared<const Mesh::Listener>([&](const Error&) { mesh->listen(inner); });
  mesh->listen(outer);
  (void)mesh->fail({.cause = cause});
  EXPECT_EQ(heard, 1);
}

}  // namespace
}  // namespace tutti::backend::mesh
