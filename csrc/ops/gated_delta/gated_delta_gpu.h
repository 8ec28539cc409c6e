// GatedDelta on a GPU.
#pragma once

#include "ops/gated_delta/gated_delta.h"
#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

using DeltaArgs = MatrixArgs<DeltaPass>;

// Computes a pass. False: the launcher could not.
bool enqueue_gated_delta(Launcher* launcher, const DeltaArgs& args);

}  // namespace edge_rt::gpu
