// Starts kernels; what enqueues work of operators is written against it.
#pragma once

#include <cstddef>

namespace edge_rt::gpu {

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Starts a kernel by name behind all that was started before; `args` is its struct, which is copied. False: it could
  // not be started, and neither is anything after it; whoever made the launcher knows why.
  virtual bool launch(const char* kernel, int grid_x, int grid_y, const void* args, size_t bytes) = 0;

  template <class Args>
  bool launch(const char* kernel, int grid_x, int grid_y, const Args& args) {
    return launch(kernel, grid_x, grid_y, &args, sizeof args);
  }
};

}  // namespace edge_rt::gpu
