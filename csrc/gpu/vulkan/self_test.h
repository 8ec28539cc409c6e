// Whether a device computes as the CPU does, operation by operation, and which of float_exact.glsl's mends make up for
// what it does not.
#pragma once

#include <cstdint>
#include <functional>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

constexpr const char* kSelfTestKernel = "self_test";
// Bits as in float_exact.glsl, and products of packed bytes by the code that has none.
constexpr uint32_t kMendsDots = 16, kMendsAll = 15 | kMendsDots;

// Runs on a queue of the device. `restart` makes what follows run with these mends. `mends` gets those that the device
// needs. False: the device failed, or computes integers wrongly, so that nothing can be mended.
bool run_self_test(GpuDevice* device, GpuQueue* queue, const std::function<void(uint32_t)>& restart, SelfTest* out,
                   uint32_t* mends, GpuError* error);

}  // namespace edge_rt::gpu
