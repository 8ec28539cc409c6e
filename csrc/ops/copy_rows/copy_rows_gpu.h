// Starts the kernels that copy and multiply rows; pointers inside a job are device memory, and ids are not checked.
#pragma once

#include "gpu/launcher.h"
#include "ops/copy_rows/copy_rows.h"

namespace edge_rt::gpu {

// False: see Launcher.
bool enqueue_copy_rows(Launcher* launcher, const CopyRows& job);
bool enqueue_split_rows(Launcher* launcher, const SplitRows& job);
bool enqueue_scale_rows(Launcher* launcher, const ScaleRows& job);

}  // namespace edge_rt::gpu
