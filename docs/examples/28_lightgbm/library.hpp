#pragma once

// The part of LightGBM's C interface that the example calls, loaded at run time.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

/// LightGBM's functions. All but last_error() return 0, or -1 with a text in last_error().
struct LightGbm {
  enum DType { f32 = 0, f64 = 1, i32 = 2 };

  const char* (*last_error)();
  int (*log_to)(void (*)(const char*));
  int (*network_functions)(int ranks, int rank, void* reduce_scatter, void* all_gather);
  int (*network_sockets)(const char* machines, int port, int minutes, int ranks);
  int (*network_free)();
  int (*dataset)(const void* data, int dtype, std::int32_t rows, std::int32_t columns,
                 int row_major, const char* parameters, const void* reference, void** out);
  int (*dataset_field)(void*, const char* name, const void* data, int count, int dtype);
  int (*dataset_free)(void*);
  int (*booster)(const void* dataset, const char* parameters, void** out);
  int (*booster_iterate)(void*, int* finished);
  int (*booster_metrics)(void*, int dataset, int* count, double* out);
  int (*booster_text)(void*, int first, int count, int importance, std::int64_t capacity,
                      std::int64_t* bytes, char* out);
  int (*booster_free)(void*);

  explicit LightGbm(const std::string& path) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    const auto find = [&]<typename F>(F*& function, const char* name) {
      function = reinterpret_cast<F*>(::dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(path + " has no " + name);
    };
    find(last_error, "LGBM_GetLastError");
    find(log_to, "LGBM_RegisterLogCallback");
    find(network_functions, "LGBM_NetworkInitWithFunctions");
    find(network_sockets, "LGBM_NetworkInit");
    find(network_free, "LGBM_NetworkFree");
    find(dataset, "LGBM_DatasetCreateFromMat");
    find(dataset_field, "LGBM_DatasetSetField");
    find(dataset_free, "LGBM_DatasetFree");
    find(booster, "LGBM_BoosterCreate");
    find(booster_iterate, "LGBM_BoosterUpdateOneIter");
    find(booster_metrics, "LGBM_BoosterGetEval");
    find(booster_text, "LGBM_BoosterSaveModelToString");
    find(booster_free, "LGBM_BoosterFree");
  }

  void check(int status) const {
    if (status != 0) throw std::runtime_error(last_error());
  }
};

/// The path in LIGHTGBM_LIBRARY, or that of Python's package; empty if there is none.
inline std::string path_of_lightgbm() {
  if (const char* path = std::getenv("LIGHTGBM_LIBRARY")) return path;
  const char* const ask =
      "python3 -c 'import importlib.util as u; s = u.find_spec(\"lightgbm\"); "
      "s and print(s.submodule_search_locations[0], end=\"/lib/lib_lightgbm.so\")' 2>/dev/null";
  std::string path;
  if (FILE* const pipe = ::popen(ask, "r")) {
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) path += static_cast<char>(c);
    ::pclose(pipe);
  }
  return path;
}
