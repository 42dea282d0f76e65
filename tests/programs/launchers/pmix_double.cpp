// Stands in for libpmix.so.2: keys and fences are files in the folder TUTTI_TEST_PMIX. If that has
// a file of a function's name, the function waits for ever, as for a launcher that does not answer.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

struct Rank {
  char job[256];
  std::uint32_t rank;
};
struct Text {
  std::uint16_t type;
  char* text;
  void* rest[2];
};

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::filesystem::path file_of(const std::string& name) {
  const auto folder = variable("TUTTI_TEST_PMIX");
  if (folder.empty()) throw std::runtime_error("TUTTI_TEST_PMIX is not set");
  return std::filesystem::path(folder) / name;
}

std::string key_of(const char* key, const std::string& rank) {
  return std::string(key) + "." + rank;
}

void answer(const char* function) {
  while (std::filesystem::exists(file_of(function)))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

#define PMIX_DOUBLE extern "C" [[gnu::visibility("default")]]

PMIX_DOUBLE int PMIx_Init(Rank* self, void*, std::size_t) {
  answer("PMIx_Init");
  std::strcpy(self->job, variable("PMIX_NAMESPACE").c_str());
  self->rank = static_cast<std::uint32_t>(std::stoul(variable("PMIX_RANK")));
  return 0;
}

PMIX_DOUBLE int PMIx_Finalize(const void*, std::size_t) {
  std::ofstream(file_of(key_of("finalized", variable("PMIX_RANK"))));
  return 0;
}

PMIX_DOUBLE int PMIx_Put(std::uint8_t scope, const char* key, Text* value) {
  if (scope != 3 || value->type != 3) return -27;
  std::ofstream(file_of(key_of(key, variable("PMIX_RANK")))) << value->text;
  return 0;
}

PMIX_DOUBLE int PMIx_Commit() {
  answer("PMIx_Commit");
  return 0;
}

// Without "pmix.collect" a real library may give a later program of the ranks an old value.
PMIX_DOUBLE int PMIx_Fence_nb(const void*, std::size_t, const char* key, std::size_t infos,
                              void (*done)(int, void*), void* data) {
  if (infos != 1 || std::strcmp(key, "pmix.collect") != 0) return -27;
  std::ofstream(file_of(key_of("fence", variable("PMIX_RANK"))));
  std::thread([done, data] {
    int size = 0;
    std::ifstream(file_of("size")) >> size;
    for (int rank = 0; rank < size;)
      if (std::filesystem::exists(file_of(key_of("fence", std::to_string(rank)))))
        ++rank;
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done(0, data);
  }).detach();
  return 0;
}

PMIX_DOUBLE int PMIx_Get(const Rank* of, const char* key, const void*, std::size_t, Text** value) {
  answer("PMIx_Get");
  std::ifstream file(file_of(key_of(key, std::to_string(of->rank))));
  if (!file || variable("PMIX_NAMESPACE") != of->job) return -46;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  *value = static_cast<Text*>(std::calloc(1, sizeof(Text)));
  (*value)->type = 3;
  (*value)->text = ::strdup(text.c_str());
  return 0;
}

PMIX_DOUBLE const char* PMIx_Error_string(int status) {
  return status == -46 ? "PMIX_ERR_NOT_FOUND" : "PMIX_ERR_BAD_PARAM";
}
