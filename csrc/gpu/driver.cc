#include "gpu/driver.h"

namespace edge_rt::gpu {

std::string DriverError::sentence() const {
  if (function == nullptr) return "";
  if (code == 0) return std::string(function) + ": " + name;
  return std::string(function) + " failed: " + name + " (" + std::to_string(code) + ")";
}

bool keep_error(const Driver& driver, CUresult code, const char* function, DriverError* error) {
  if (code == 0) return true;
  if (!*error) {
    const char* name = nullptr;
    const bool is_known = driver.cuGetErrorName != nullptr && driver.cuGetErrorName(code, &name) == 0;
    *error = {function, code, is_known && name != nullptr ? name : "an error without a name"};
  }
  return false;
}

}  // namespace edge_rt::gpu
