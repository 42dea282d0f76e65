#include <tutti/trace_file.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "group/trace_layout.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/scoped_variables.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using internal::TraceLayout;

std::vector<GroupOptions> ranks(int size) {
  std::vector<GroupOptions> options;
  const auto store = make_memory_store();
  for (int rank = 0; rank < size; ++rank)
    options.push_back({.backend = "local",
                       .store = store,
                       .rank = rank,
                       .size = size,
                       .checked = false,
                       .logger = [](LogLevel, std::string_view) {}});
  return options;
}

/// A directory that TUTTI_TRACE_DIR names.
class Traces : public testing::Test {
 protected:
  std::vector<std::filesystem::path> paths() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      found.push_back(entry.path());
    return found;
  }
  /// The files by group and rank.
  std::map<std::pair<std::string, int>, TraceFile> files() const {
    std::map<std::pair<std::string, int>, TraceFile> found;
    for (const auto& path : paths()) {
      std::ifstream in(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      auto file = read_trace(std::as_bytes(std::span(bytes)));
      const std::pair key(file.group, file.rank);
      EXPECT_TRUE(found.emplace(key, std::move(file)).second) << path;
    }
    return found;
  }

  TemporaryDirectory directory_;
  ScopedVariables variable_{{"TUTTI_TRACE_DIR", directory_.path().c_str()}};
};

std::vector<std::string> texts(const Trace& trace) {
  std::vector<std::string> all;
  for (const auto& e : trace) all.push_back(to_string(e));
  return all;
}

TEST_F(Traces, HaveTheCallsOfEveryRankWhileTheGroupExistsAndAfter) {
  auto groups = ProcessGroup::create_all(ranks(2));
  std::vector<std::thread> threads;
  for (auto& group : groups)
    threads.emplace_back([&group] {
      std::vector<float> data(4);
      group.all_reduce(data, ReduceOp::sum, {.name = "weights"});
      if (group.rank() == 0)
        group.send(data, 1);
      else
        group.recv(data, 0);
    });
  for (auto& thread : threads) thread.join();
  for (const bool closed : {false, true}) {
    if (closed) groups.clear();
    const auto found = files();
    ASSERT_EQ(found.size(), 2U);
    for (int rank = 0; rank < 2; ++rank) {
      const auto& file = found.at({"world", rank});
      EXPECT_EQ(file.size, 2);
      EXPECT_EQ(file.pid, ::getpid());
      EXPECT_EQ(file.closed, closed);
      EXPECT_NE(file.made, 0U);
      EXPECT_EQ(file.made, found.at({"world", 1 - rank}).made);
      EXPECT_EQ(texts(file.collectives),
                std::vector<std::string>{"all_reduce #0 sum f32 16 B 'weights' done"});
      EXPECT_EQ(texts(file.messages),
                std::vector<std::string>{rank == 0 ? "send #0 f32 16 B peer 1 done"
                                                   : "recv #0 f32 16 B peer 0 done"});
      const auto started = file.collectives[0].started.time_since_epoch() + file.wall_offset;
      const auto age = std::chrono::system_clock::now().time_since_epoch() - started;
      EXPECT_LT(age, 60s) << "the offset leads to the time of day";
      EXPECT_GT(age, -1s);
    }
  }
}

TEST_F(Traces, ShowACallThatIsRunning) {
  auto groups = ProcessGroup::create_all(ranks(2));
  std::vector<float> data(4);
  auto work = groups[0].recv_async(data, 1);
  EXPECT_EQ(texts(files().at({"world", 0}).messages),
            std::vector<std::string>{"recv #0 f32 16 B peer 1 async running"});
  groups[1].send(data, 0);
  work.wait();
  EXPECT_EQ(texts(files().at({"world", 0}).messages),
            std::vector<std::string>{"recv #0 f32 16 B peer 1 async done"});
}

TEST_F(Traces, OfGroupsOfOneNameDiffer) {
  for (int i = 0; i < 2; ++i) (void)ProcessGroup::create_all(ranks(1));
  EXPECT_EQ(paths().size(), 2U);
}

TEST_F(Traces, OfAPartHaveItsNameAndAFileInTheDirectory) {
  auto group = ProcessGroup::create(ranks(1)[0]);
  const auto part = group.split(0, 0);
  const auto found = files();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found.contains({part->name(), 0})) << part->name();
  EXPECT_NE(part->name().find('/'), std::string::npos);
}

TEST_F(Traces, AChildDoesNotWriteToThoseOfItsParent) {
  auto groups = ProcessGroup::create_all(ranks(2));
  std::vector<float> data(4);
  std::optional work = groups[0].recv_async(data, 1);
  const auto before = texts(files().at({"world", 0}).messages);
  const auto end = in_child([&] {
    try {
      work->wait();
    } catch (const Error&) {
    }
    work.reset();
    try {
      groups[0].all_reduce(data);
    } catch (const Error&) {
    }
    groups.clear();
    return std::string("done");
  });
  EXPECT_TRUE(end.ended) << end.output;
  const auto file = files().at({"world", 0});
  EXPECT_EQ(texts(file.messages), before);
  EXPECT_TRUE(file.collectives.empty());
  EXPECT_FALSE(file.closed);
  groups[1].send(data, 0);
  work->wait();
}

TEST(TraceDirectory, ThatCannotBeWrittenIsAnErrorByName) {
  const TemporaryDirectory directory;
  const auto missing = directory.path() + "/missing";
  const ScopedVariables variable{{"TUTTI_TRACE_DIR", missing.c_str()}};
  expect_error(Errc::backend, {"TUTTI_TRACE_DIR", missing + "/world.0.", "No such file"},
               [] { (void)ProcessGroup::create(ranks(1)[0]); });
  expect_error(Errc::backend, {"TUTTI_TRACE_DIR", missing},
               [] { (void)ProcessGroup::create_all(ranks(2)); });
}

TEST(TraceDirectory, ThatIsEmptyIsNone) {
  const ScopedVariables variable{{"TUTTI_TRACE_DIR", ""}};
  EXPECT_EQ(ProcessGroup::create(ranks(1)[0]).size(), 1);
}

// Damaged files.

class DamagedTrace : public testing::Test {
 protected:
  DamagedTrace() {
    layout->magic = TraceLayout::known_magic;
    layout->made = 5;
    layout->rank = 1;
    layout->size = 3;
    layout->pid = 4411;
    layout->host = {"node1"};
    layout->group = {"world"};
    for (std::uint64_t i = 0; i < 70; ++i) {
      layout->rings.collectives.begin(i, i, Operation::barrier, {.kind = Operation::barrier}, 1,
                                      false, "step");
      layout->rings.messages.begin(i, i, Operation::send, {.kind = Operation::send, .peer = 0}, 1,
                                   false, "");
    }
  }
  std::vector<std::byte> bytes() const {
    const auto all = std::as_bytes(std::span(layout.get(), 1));
    return {all.begin(), all.end()};
  }
  void refused(const std::string& word) const {
    expect_error(Errc::invalid_argument, {word}, [&] { (void)read_trace(bytes()); });
  }
  std::unique_ptr<TraceLayout> layout = std::make_unique<TraceLayout>();
};

TEST_F(DamagedTrace, IsReadIfItIsWhole) {
  const auto file = read_trace(bytes());
  EXPECT_EQ(file.group, "world");
  EXPECT_EQ(file.host, "node1");
  EXPECT_EQ(file.rank, 1);
  EXPECT_EQ(file.collectives.size(), 64U);
  EXPECT_EQ(file.messages.back().seq, 69U);
}

TEST_F(DamagedTrace, OfAnotherLengthIsRefused) {
  const auto whole = bytes();
  for (std::size_t size = 0; size < whole.size(); size += 61)
    expect_error(Errc::invalid_argument, {std::to_string(size), std::to_string(whole.size())},
                 [&] { (void)read_trace(std::span(whole).first(size)); });
  auto longer = whole;
  longer.push_back({});
  expect_error(Errc::invalid_argument, {"not a trace file"}, [&] { (void)read_trace(longer); });
}

TEST_F(DamagedTrace, WithAFieldThatCannotBeIsRefused) {
  const auto with = [this](auto& field, auto value, const char* word) {
    const auto old = field;
    field = value;
    refused(word);
    field = old;
  };
  with(layout->rank, 3, "the rank is 3");
  with(layout->rank, -1, "the rank is -1");
  with(layout->size, 0, "the size is 0");
  with(layout->pid, std::int64_t{0}, "pid is 0");
  with(layout->pid, std::int64_t{1} << 40, "pid");
  with(layout->opened, std::int64_t{-1}, "its time");
  with(layout->wall_offset, std::numeric_limits<std::int64_t>::min(), "its clock");
  layout->magic = 7;
  refused("begins with 0x7");
  layout->magic = TraceLayout::known_magic;
  layout->rings.messages.begin(70, 70, Operation::barrier, {.kind = Operation::barrier}, 1, false,
                               "");
  refused("an operation is 11");
}

TEST_F(DamagedTrace, WithAnEntryInTheWrongSlotIsRefused) {
  auto all = bytes();
  const auto ring = offsetof(TraceLayout, rings);
  std::copy_n(all.begin() + ring, 64, all.begin() + ring + 64);
  expect_error(Errc::invalid_argument, {"an entry's number"}, [&] { (void)read_trace(all); });
}

TEST_F(DamagedTrace, TextsCannotReachATerminal) {
  layout->group.fill('\x1b');
  layout->host = {"a\nb\x80"};
  layout->rings.collectives.begin(70, 70, Operation::barrier, {.kind = Operation::barrier}, 1,
                                  false, "a\033b");
  const auto file = read_trace(bytes());
  EXPECT_EQ(file.group, std::string(sizeof layout->group, '?'));
  EXPECT_EQ(file.host, "a?b?");
  EXPECT_EQ(file.collectives.back().name, "a?b");
}

TEST_F(DamagedTrace, EveryChangedByteIsRefusedOrGivesFieldsThatCanBe) {
  const auto whole = bytes();
  int read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const auto change : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
      auto all = whole;
      all[at] ^= change;
      try {
        const auto file = read_trace(all);
        ++read;
        ASSERT_TRUE(file.rank >= 0 && file.rank < file.size);
        ASSERT_LE(file.collectives.size(), 64U);
        for (const auto& e : file.messages) ASSERT_TRUE(is_point_to_point(e.operation)) << at;
        for (const auto& e : file.collectives) ASSERT_FALSE(to_string(e).empty());
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Errc::invalid_argument) << at;
      }
    }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace tutti::test
