// NVIDIA's own driver, which a machine without one of its GPUs does not have.
#include <mutex>

#include "gpu/cuda/driver.h"

namespace edge_rt::gpu {
namespace {

// Graphs are instantiated with flags from this version on.
constexpr int kOldestVersion = 11040;

bool initialise(Driver* driver, DriverError* error) {
  if (!load_driver("libcuda.so.1", driver, error)) return false;
  if (!EDGE_RT_DRIVER_CALL(*driver, cuInit, error, 0)) return false;
  int version = 0;
  if (!EDGE_RT_DRIVER_CALL(*driver, cuDriverGetVersion, error, &version)) return false;
  if (version >= kOldestVersion) return true;
  *error = {"cuDriverGetVersion", 0,
            "the driver is of CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
                ", 11.4 or newer is needed"};
  return false;
}

}  // namespace

const Driver* open_driver(DriverError* error) {
  static std::mutex lock;
  static Driver driver;
  static DriverError failed;
  static bool is_open = false, was_tried = false;
  const std::lock_guard<std::mutex> guard(lock);
  if (!was_tried) is_open = initialise(&driver, &failed);
  was_tried = true;
  if (!is_open) *error = failed;
  return is_open ? &driver : nullptr;
}

}  // namespace edge_rt::gpu
