// Gloo's own calls as a contestant of contest.py, as a program without this library would make
// them. usage: peer_gloo DIRECTORY SIZE RANK [default|ring|bcube]

#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>

#include "bare_gloo.hpp"
#include "contestant.hpp"

namespace tutti::peers {
namespace {

Call make(Bare& gloo, Bare::Algorithm algorithm, int size, const Request& request, Arrays arrays) {
  const auto& operation = request.operation;
  const auto in = arrays.in;
  const auto out = arrays.out;
  if (operation == "barrier") return [&gloo](int) { gloo.barrier(); };
  if (operation == "all_reduce") return [=, &gloo](int) { gloo.all_reduce(in, algorithm); };
  if (algorithm != Bare::Algorithm::UNSPECIFIED) return {};  // Only all_reduce has a choice.
  if (operation == "broadcast") return [=, &gloo](int call) { gloo.broadcast(in, call % size); };
  if (operation == "reduce") return [=, &gloo](int call) { gloo.reduce(in, out, call % size); };
  if (operation == "all_gather") return [=, &gloo](int) { gloo.all_gather(in, out); };
  if (operation == "all_gather_rows")
    return [=, &gloo, counts = request.counts](int) { gloo.all_gather_rows(in, out, counts); };
  return {};
}

}  // namespace
}  // namespace tutti::peers

int main(int count, char** words) try {
  using namespace tutti::peers;
  if (count < 4) return 2;
  const std::map<std::string, Bare::Algorithm> algorithms{{"default", Bare::Algorithm::UNSPECIFIED},
                                                          {"ring", Bare::Algorithm::RING},
                                                          {"bcube", Bare::Algorithm::BCUBE}};
  const auto algorithm = algorithms.at(count > 4 ? words[4] : "default");
  const int size = std::stoi(words[2]);
  const int rank = std::stoi(words[3]);
  const auto store = std::string(words[1]) + "/gloo";
  std::filesystem::create_directories(store);
  Bare gloo(rank, size, store);
  return serve(words[1],
               {.rank = rank, .size = size, .make = [&](const auto& request, auto arrays) {
                  return make(gloo, algorithm, size, request, arrays);
                }});
} catch (const std::exception& error) {
  std::fprintf(stderr, "peer_gloo: %s\n", error.what());
  return 1;
}
