#include <cstdio>

#include <tutti/version.hpp>

// Detects a mixed installation: headers of one version and a library of another.
int main() {
  const auto library = tutti::library_version();
  if (library == tutti::header_version) return 0;
  std::printf("headers %d.%d.%d, library %d.%d.%d\n", tutti::header_version.major,
              tutti::header_version.minor, tutti::header_version.patch, library.major,
              library.minor, library.patch);
  return 1;
}
