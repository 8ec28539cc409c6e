// The test of the tests: takes away one barrier of GPU kernels after the other, and asks whether fibers in some order
// then compute other bits (or crash). Include this last, and kernels' source behind it: their barriers are macros then.
#pragma once

#include <cstddef>
#include <functional>

#include "gpu/cuda/lane_math.h"

namespace edge_rt::faults {

// Whether the barrier of a line is in its place.
bool holds(const char* file, int line);

// Runs `passes`, which end the program where bits differ, in processes of their own: without each `every`-th of the
// barriers that they meet. Prints those that are not missed, and returns 1 if they are more than `hidden`, else 0.
int try_without_barriers(const std::function<void()>& passes, size_t hidden, size_t every);

}  // namespace edge_rt::faults

#define barrier() (::edge_rt::faults::holds(__FILE__, __LINE__) ? ::edge_rt::gpu::barrier() : void())
#define warp_barrier() (::edge_rt::faults::holds(__FILE__, __LINE__) ? ::edge_rt::gpu::warp_barrier() : void())
