#include <dlfcn.h>

#include "gpu/cuda/driver.h"

namespace edge_rt::gpu {

bool load_driver(const char* library, Driver* out, DriverError* error) {
  // Never closed: the driver keeps threads of its own.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    *error = {"dlopen", 0, why != nullptr ? why : library};
    return false;
  }
  bool is_complete = true;
#define EDGE_RT_LOAD(field, symbol, arguments)                                           \
  if (is_complete) {                                                                     \
    out->field = reinterpret_cast<decltype(out->field)>(dlsym(handle, symbol));          \
    is_complete = out->field != nullptr;                                                 \
    if (!is_complete) *error = {"dlsym", 0, std::string(library) + " has no " + symbol}; \
  }
  EDGE_RT_DRIVER_FUNCTIONS(EDGE_RT_LOAD)
#undef EDGE_RT_LOAD
  return is_complete;
}

}  // namespace edge_rt::gpu
