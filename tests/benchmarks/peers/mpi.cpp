// An MPI as a contestant of contest.py, which compiles this file with the compiler of each MPI.
// usage: mpirun -n SIZE peer_mpi DIRECTORY

#include <mpi.h>

#include <string>
#include <vector>

#include "contestant.hpp"

namespace tutti::peers {
namespace {

Call make(int rank, int size, const Request& request, Arrays arrays) {
  const auto& operation = request.operation;
  float* in = arrays.in.data();
  float* out = arrays.out.data();
  const auto count = static_cast<int>(arrays.in.size());
  const auto world = MPI_COMM_WORLD;
  if (operation == "barrier") return [=](int) { MPI_Barrier(world); };
  if (operation == "all_reduce")
    return [=](int) { MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, world); };
  if (operation == "broadcast")
    return [=](int call) { MPI_Bcast(in, count, MPI_FLOAT, call % size, world); };
  if (operation == "reduce")
    return [=](int call) { MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, call % size, world); };
  if (operation == "all_gather")
    return [=](int) { MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, world); };
  if (operation == "all_gather_rows") {
    std::vector<int> counts(request.counts.begin(), request.counts.end());
    std::vector<int> begins;
    int begin = 0;
    for (const int rows : counts) {
      begins.push_back(begin);
      begin += rows;
    }
    return [=](int) {
      MPI_Allgatherv(in, counts[static_cast<std::size_t>(rank)], MPI_FLOAT, out, counts.data(),
                     begins.data(), MPI_FLOAT, world);
    };
  }
  return {};
}

}  // namespace
}  // namespace tutti::peers

int main(int count, char** words) {
  MPI_Init(&count, &words);
  if (count != 2) return 2;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string text(version, static_cast<std::size_t>(length));
  const auto status =
      tutti::peers::serve(words[1], {.rank = rank,
                                     .size = size,
                                     .version = text.substr(0, text.find_first_of(",\n")),
                                     .make = [=](const auto& request, auto arrays) {
                                       return tutti::peers::make(rank, size, request, arrays);
                                     }});
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
}
