// GPUs that memory was asked of, or copied to or from, outside of a session: they stay open, or every copy would open
// them.
#pragma once

#include <memory>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

// Opens the GPU, unless it is open and not lost.
std::shared_ptr<GpuDevice> keep_gpu(int number, GpuError* error);
// Nobody can open a lost device anew as long as somebody holds it.
void drop_lost_gpu(int number);
// Lets all go, when there is no provider any more.
void drop_kept_gpus();

}  // namespace edge_rt::gpu
