// Tests the two network functions without LightGBM: an element is a text, and the reducer writes
// down what it combines.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/tutti.hpp>

#include "network.hpp"

namespace {

constexpr int element = 24;

void combine_texts(const char* in, char* inout, int bytes_of_element, std::int32_t bytes) {
  for (std::int32_t at = 0; at < bytes; at += bytes_of_element) {
    std::string both = "(";
    both.append(inout + at).append(in + at).append(")");
    std::memcpy(inout + at, both.c_str(), both.size() + 1);
  }
}

/// The result of LightGBM's recursive halving, by size and rank: each round combines the own value
/// with that of the node at half the distance of the round before. If the size is not a power of
/// two, the last ranks are pairs, whose left ranks combine both values first.
const std::map<std::pair<int, int>, const char*> expected = {
    {{2, 0}, "(01)"},          {{2, 1}, "(10)"},          {{3, 0}, "(0(12))"},
    {{3, 1}, "((12)0)"},       {{3, 2}, "((12)0)"},       {{4, 0}, "((02)(13))"},
    {{4, 1}, "((13)(02))"},    {{4, 2}, "((20)(31))"},    {{4, 3}, "((31)(20))"},
    {{5, 0}, "((02)(1(34)))"}, {{5, 1}, "((1(34))(02))"}, {{5, 2}, "((20)((34)1))"},
    {{5, 3}, "(((34)1)(20))"}, {{5, 4}, "(((34)1)(20))"}, {{6, 0}, "((0(23))(1(45)))"},
};

/// Rank r's block has r - 1 elements, that of rank 0 size - 1. Returns the number of wrong ones.
int wrong_elements(tutti::ProcessGroup group) {
  const int rank = group.rank();
  const int size = group.size();
  network::state = {.group = &group};
  std::vector<std::int32_t> starts, lengths;
  std::int32_t total = 0;
  for (int r = 0; r < size; ++r) {
    starts.push_back(total);
    lengths.push_back((r + size - 1) % size * element);
    total += lengths.back();
  }
  std::vector<char> in(static_cast<std::size_t>(total)), out(in.size());
  for (int at = 0; at < total; at += element) in[static_cast<std::size_t>(at)] = char('0' + rank);
  const std::int32_t mine = lengths[static_cast<std::size_t>(rank)];
  network::reduce_scatter(in.data(), total, element, starts.data(), lengths.data(), size,
                          out.data(), total, combine_texts);
  network::all_gather(out.data(), mine, starts.data(), lengths.data(), size, out.data(), total);
  int wrong = 0;
  for (int r = 0; r < size; ++r) {
    const auto want = expected.find({size, r});
    if (want == expected.end()) continue;
    const auto at = static_cast<std::size_t>(starts[static_cast<std::size_t>(r)]);
    for (int i = 0; i < lengths[static_cast<std::size_t>(r)]; i += element) {
      const char* const found = out.data() + at + i;
      if (std::strcmp(found, want->second) == 0) continue;
      std::fprintf(stderr, "rank %d of %d: block of rank %d: %s, not %s\n", rank, size, r, found,
                   want->second);
      ++wrong;
    }
  }
  return wrong;
}

}  // namespace

int main() try {
  int wrong = 0;
  for (int size = 2; size <= 6; ++size) {
    std::vector<tutti::GroupOptions> options(static_cast<std::size_t>(size));
    const auto store = tutti::open_store("memory://" + std::to_string(size));
    for (int rank = 0; rank < size; ++rank) {
      options[static_cast<std::size_t>(rank)] = {
          .backend = "local", .store = store, .rank = rank, .size = size};
    }
    auto groups = tutti::ProcessGroup::create_all(options);
    std::vector<int> of_rank(groups.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < groups.size(); ++r) {
      threads.emplace_back([&, r] { of_rank[r] = wrong_elements(groups[r].share()); });
    }
    for (auto& thread : threads) thread.join();
    wrong += static_cast<int>(std::ranges::count_if(of_rank, [](int n) { return n != 0; }));
  }
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
