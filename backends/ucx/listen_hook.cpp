#include "listen_hook.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tutti::backend::ucx {
namespace {

int (*before_listen_of_library)(int descriptor) = nullptr;

int listen_of_library(int descriptor, int backlog) {
  return before_listen_of_library(descriptor) == 0 ? ::listen(descriptor, backlog) : -1;
}

/// The dynamic section of a library (ELF): the tables by which the linker has bound its functions.
class Dynamic {
 public:
  explicit Dynamic(const link_map& library) : library_(library) {}

  template <typename T>
  T* table(ElfW(Sxword) tag) const {
    const auto value = number(tag);
    if (value == 0) return nullptr;
    // The linker has made the address absolute, except where it cannot write to the section.
    return reinterpret_cast<T*>(value < library_.l_addr ? value + library_.l_addr : value);
  }
  std::size_t number(ElfW(Sxword) tag) const {
    for (const auto* entry = library_.l_ld; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == tag) return entry->d_un.d_val;
    return 0;
  }

 private:
  const link_map& library_;
};

/// The slot may be in a page that the linker has made read-only.
bool write_slot(void** slot, void* function) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto* const begin = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(slot) & ~(page - 1));
  if (::mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, function, __ATOMIC_RELEASE);
  return true;
}

}  // namespace

bool call_before_listen(const char* library, int (*before)(int descriptor)) {
  void* const handle = ::dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  link_map* map = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return false;
  before_listen_of_library = before;
  const Dynamic dynamic(*map);
  const auto* const symbols = dynamic.table<const ElfW(Sym)>(DT_SYMTAB);
  const auto* const names = dynamic.table<const char>(DT_STRTAB);
  using Rela = ElfW(Rela);
  const std::span<const Rela> tables[] = {
      {dynamic.table<const Rela>(DT_JMPREL),
       dynamic.number(DT_PLTREL) == DT_RELA ? dynamic.number(DT_PLTRELSZ) / sizeof(Rela) : 0},
      {dynamic.table<const Rela>(DT_RELA), dynamic.number(DT_RELASZ) / sizeof(Rela)}};
  bool found = false;
  for (const auto& table : tables)
    for (const auto& entry : table) {
      const auto symbol = entry.r_info >> (sizeof(void*) == 8 ? 32 : 8);
      if (symbol == 0 || std::strcmp(names + symbols[symbol].st_name, "listen") != 0) continue;
      auto** const slot = reinterpret_cast<void**>(map->l_addr + entry.r_offset);
      found = write_slot(slot, reinterpret_cast<void*>(listen_of_library)) || found;
    }
  return found;
}

}  // namespace tutti::backend::ucx
