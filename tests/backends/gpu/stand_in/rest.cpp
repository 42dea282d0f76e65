// The functions that no test calls. Those of nccl.cpp replace the weak ones.

#include "nccl/nccl_api.hpp"

extern "C" int tutti_stand_in() {
  return ncclInternalError;
}

#define TUTTI_REST(field, function) asm(".weak " #function "\n.set " #function ", tutti_stand_in");
TUTTI_NCCL_FUNCTIONS(TUTTI_REST)
