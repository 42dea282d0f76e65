// Stands in for an MPI library of the program, preloaded. TUTTI_TEST_MPI is its state: "loaded",
// "initialized" or "finalized".
#include <cstdlib>
#include <string_view>

namespace {

std::string_view state() {
  const char* text = std::getenv("TUTTI_TEST_MPI");
  return text == nullptr ? "" : text;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int MPI_Initialized(int* flag) {
  *flag = state() != "loaded" ? 1 : 0;
  return 0;
}

extern "C" [[gnu::visibility("default")]] int MPI_Finalized(int* flag) {
  *flag = state() == "finalized" ? 1 : 0;
  return 0;
}
