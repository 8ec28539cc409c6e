// A launcher whose kernels run on fibers at once.
#pragma once

#include <cstdint>
#include <cstdio>

#include "gpu/cuda/device.h"
#include "gpu/launcher.h"

namespace edge_rt::gpu {

class FiberLauncher : public Launcher {
 public:
  // Of the order of fibers: see simt::launch.
  explicit FiberLauncher(uint64_t seed) : seed_(seed) {}

  using Launcher::launch;
  bool launch(const Kernel& chosen, int grid_x, int grid_y, const void* args, size_t bytes) override {
    const simt::Kernel* kernel = simt::find_kernel(chosen.name);
    if (kernel == nullptr || kernel->args_bytes != bytes) {
      std::fprintf(stderr, "There is no kernel %s with %zu bytes of arguments\n", chosen.name, bytes);
      return false;
    }
    simt::launch(*kernel, grid_x, grid_y, args, seed_);
    return true;
  }

 private:
  uint64_t seed_;
};

}  // namespace edge_rt::gpu
