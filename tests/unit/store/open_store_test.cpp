#include <string>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

#include "support/errors.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

TEST(OpenStore, OpensAFileStore) {
  const TemporaryDirectory directory;
  open_store("file://" + directory.path())->set("key", "value");
  EXPECT_EQ(make_file_store(directory.path())->get_text("key", 0s), "value");
}

TEST(OpenStore, OpensOneMemoryStorePerName) {
  const auto one = open_store("memory://one");
  one->set("key", "of one");
  EXPECT_EQ(open_store("memory://one")->get_text("key", 0s), "of one");
  EXPECT_EQ(open_store("memory://other")->try_get("key"), std::nullopt);
}

TEST(OpenStore, ForgetsAMemoryStoreWithoutReferences) {
  open_store("memory://forgotten")->set("key", "value");
  EXPECT_EQ(open_store("memory://forgotten")->try_get("key"), std::nullopt);
}

TEST(OpenStore, OpensAStoreOverTcpByNameAndByBothKindsOfAddress) {
  StoreServer server;  // Every interface.
  const auto port = std::to_string(server.port());
  open_store("tcp://127.0.0.1:" + port, 5s)->set("key", "value");
  for (const auto* host : {"127.0.0.1", "localhost", "[::1]"})
    EXPECT_EQ(open_store("tcp://" + std::string(host) + ":" + port, 5s)->get_text("key", 1s),
              "value")
        << host;
}

TEST(OpenStore, RefusesWhatIsNoAddress) {
  for (const auto* address : {"/tmp", "file:/tmp", "", "mem", "file://", "file://tmp", "memory://"})
    expect_error(Errc::invalid_argument, {std::string("'") + address + "'", "file:///"},
                 [&] { (void)open_store(address); });
  for (const auto* address :
       {"tcp://", "tcp://host", "tcp://host:", "tcp://:29500", "tcp://host:0", "tcp://host:65536",
        "tcp://host:-1", "tcp://host:80x", "tcp://host: 80", "tcp://::1:29500", "tcp://[::1]",
        "tcp://[]:29500", "tcp://[::1:29500", "tcp://host:29500/", "tcp://a:b:29500",
        "tcp://host:99999999999"})
    expect_error(Errc::invalid_argument, {std::string("'") + address + "'", "tcp://host:29500"},
                 [&] { (void)open_store(address, 100ms); });
}

TEST(OpenStore, RefusesASchemeThatItDoesNotKnow) {
  for (const auto* address : {"FILE:///tmp", "http://host:80", "://"})
    expect_error(Errc::unsupported, {std::string("'") + address + "'", "file:///"},
                 [&] { (void)open_store(address); });
}

}  // namespace
}  // namespace tutti::test
