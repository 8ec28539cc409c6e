#include "gpu/cuda/driver.h"

#include <algorithm>
#include <iterator>

namespace edge_rt::gpu {
namespace {

// Errors that a context keeps: every later call on the GPU gives them again, until the process ends. They are memory
// that ECC cannot mend, NVLink's, an address that is none, a context that is gone, an assertion, what a kernel does
// wrong (illegal instruction, misaligned address, address space, program counter) and a launch that failed.
constexpr CUresult kLost[] = {214, 220, 700, 709, 710, 714, 715, 716, 717, 718, kLaunchFailed};

}  // namespace

std::string DriverError::sentence() const {
  if (function == nullptr) return "";
  if (code == 0) return std::string(function) + ": " + name;
  return std::string(function) + " failed: " + name + " (" + std::to_string(code) + ")";
}

Fault DriverError::fault() const {
  if (function == nullptr) return Fault::kNone;
  switch (code) {
    case 0: return Fault::kRefused;
    case kOutOfMemory: return Fault::kOutOfMemory;
    case kLaunchTimedOut: return Fault::kHung;
    default: return std::count(std::begin(kLost), std::end(kLost), code) > 0 ? Fault::kLost : Fault::kOther;
  }
}

bool DriverError::tell(GpuError* error) const {
  if (function == nullptr) return false;
  *error = {fault(), code, sentence()};
  return true;
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
