// Starts kernels; what enqueues work of operators is written against it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt::gpu {

// A kernel by name. `choices` are those of its cases that this start needs, such as a bit for each weight format: a
// compiler on the device may leave out the others.
struct Kernel {
  Kernel(const char* its_name, uint32_t its_choices = ~uint32_t{0}) : name(its_name), choices(its_choices) {}

  const char* name;
  uint32_t choices;
};

// What geometry may depend on.
struct Traits {
  size_t shared_bytes = 48 << 10;  // of a block of threads
  bool has_matrices = true;        // products of 16 x 32 signed bytes by a warp (mma_16x8x32)
};

class Launcher {
 public:
  virtual ~Launcher() = default;

  virtual Traits traits() const { return {}; }

  // Starts a kernel behind all that was started before; `args` is its struct, which is copied. False: it could not be
  // started, and neither is anything after it; whoever made the launcher knows why.
  virtual bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) = 0;

  template <class Args>
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const Args& args) {
    return launch(kernel, grid_x, grid_y, &args, sizeof args);
  }
};

}  // namespace edge_rt::gpu
