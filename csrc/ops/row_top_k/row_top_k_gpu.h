// Starts RowTopK's kernels; pointers inside the job are device memory.
#pragma once

#include "gpu/launcher.h"
#include "ops/row_top_k/row_top_k.h"

namespace edge_rt::gpu {

// False: see Launcher.
bool enqueue_top_k(Launcher* launcher, const TopKRows& job);

}  // namespace edge_rt::gpu
