#include "rank_processes.hpp"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/processes.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

bool command(const std::string& line) {
  return std::system((line + " 2>/dev/null").c_str()) == 0;  // NOLINT(cert-env33-c)
}

}  // namespace

std::string tested_backend() {
  const char* name = std::getenv("TUTTI_TEST_BACKEND");
  return name == nullptr ? "gloo" : name;
}

RankProcess::RankProcess(int rank, int size, const std::string& directory)
    : rank_(rank), size_(size), files_(make_file_store(directory)), store_(files_) {
  files_->set(fmt::format("process/{}", rank), std::to_string(::getpid()));
}

RankProcess::~RankProcess() {
  store_.reset();
  if (server_ != nullptr) server_->wait_until_left(Deadline::after(5s));
}

void RankProcess::use_tcp(const std::string& host, const StoreToken& token) {
  if (rank_ == 0) {
    server_ = std::make_unique<StoreServer>(StoreServerOptions{.host = host, .token = token});
    files_->set("port", std::to_string(server_->port()));
  }
  const int port = std::stoi(files_->get_text("port", Deadline::after(20s)));
  store_ = make_tcp_store(host, port, 20s, StoreIdentity{.token = token});
}

GroupOptions RankProcess::options(const std::string& name) const {
  GroupOptions options;
  options.backend = tested_backend();
  options.store = make_prefix_store(store_, name + "/");
  options.rank = rank_;
  options.size = size_;
  options.timeout = 20s;
  options.name = name;
  options.checked = false;
  options.logger = [](LogLevel, std::string_view) {};  // Broken groups are expected here.
  return options;
}

ProcessGroup RankProcess::make_group(const std::string& name) const {
  return ProcessGroup::create(options(name));
}

void RankProcess::barrier(int count) {
  const int number = barriers_++;
  if (store_->add(fmt::format("here/{}", number), 1) == (count == 0 ? size_ : count))
    store_->set(fmt::format("met/{}", number), "");
  (void)store_->get(fmt::format("met/{}", number), Deadline::after(20s));
}

pid_t RankProcess::process(int rank) {
  return std::stoi(files_->get_text(fmt::format("process/{}", rank), Deadline::after(20s)));
}

bool RankProcess::enter_own_network(const std::string& rate) {
  const bool own = ::unshare(CLONE_NEWNET) == 0;
  store_->set(fmt::format("own/{}", rank_), own ? "1" : "");
  barrier();
  for (int r = 0; r < 2; ++r)
    if (store_->get_text(fmt::format("own/{}", r), Deadline::after(5s)).empty()) return false;
  bool made = true;
  if (rank_ == 0)
    made = command(fmt::format("ip link add eth0 type veth peer name eth0 netns {}", process(1)));
  barrier();
  made = made && command("ip link set lo up") &&
         command(fmt::format("ip addr add 10.99.0.{}/24 dev eth0", rank_ + 1)) &&
         (rate.empty() ||
          command(fmt::format("tc qdisc add dev eth0 root tbf rate {} burst 16kb latency 100ms",
                              rate))) &&
         command("ip link set eth0 up");
  if (made) store_->add("made", 1);
  barrier();
  // The link is up a moment after both of its ends.
  const auto limit = Deadline::after(5s);
  while (made && !command("ip link show eth0 | grep -q LOWER_UP") && !limit.expired())
    std::this_thread::sleep_for(10ms);
  barrier();
  return store_->add("made", 0) == 2;
}

std::vector<std::string> on_processes(const Processes& how,
                                      const std::function<std::string(RankProcess&)>& body) {
  const TemporaryDirectory directory;
  std::cout.flush();
  const auto ends = in_children(
      how.size,
      [&](int number) {
        const testing::ScopedTrace trace(__FILE__, __LINE__,
                                         fmt::format("rank {} of {}", number, how.size));
        const auto& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
        const int inherited = result.total_part_count();
        std::string output;
        {
          RankProcess rank(number, how.size, directory.path());
          output = body(rank);
        }
        std::cout.flush();
        for (int i = inherited; i < result.total_part_count(); ++i)
          if (result.GetTestPartResult(i).failed())
            throw std::runtime_error("something it expected");
        return output;
      },
      how.limit);
  std::vector<std::string> output;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const bool dies = static_cast<int>(i) == how.dies;
    EXPECT_TRUE(ends[i].ended || dies) << "rank " << i << " was killed or hung";
    EXPECT_FALSE(ends[i].output.starts_with("threw ")) << "rank " << i << " " << ends[i].output;
    output.push_back(ends[i].output);
  }
  return output;
}

void wait_until_stopped(pid_t process) {
  const auto limit = Deadline::after(10s);
  for (;;) {
    std::ifstream stat(fmt::format("/proc/{}/stat", process));
    std::string number;
    std::string name;
    std::string state;
    stat >> number >> name >> state;
    if (state == "T") return;
    if (limit.expired()) throw std::runtime_error("the process does not stop: " + state);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace tutti::test
