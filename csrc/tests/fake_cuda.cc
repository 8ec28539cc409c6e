// A library with the symbols of NVIDIA's driver, which do nothing, so that filling the table can be tested.
#include "gpu/cuda/driver.h"

using namespace edge_rt::gpu;

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define EDGE_RT_EXPORTED(field, symbol, arguments)                                                   \
  extern "C" __attribute__((visibility("default"))) CUresult fake_##field arguments __asm__(symbol); \
  CUresult fake_##field arguments { return 0; }
EDGE_RT_DRIVER_FUNCTIONS(EDGE_RT_EXPORTED)
