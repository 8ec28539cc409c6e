// Starts the kernel that copies rows; pointers inside the job are device memory, and ids are not checked.
#pragma once

#include "gpu/launcher.h"
#include "ops/copy_rows/copy_rows.h"

namespace edge_rt::gpu {

// False: see Launcher.
bool enqueue_copy_rows(Launcher* launcher, const CopyRows& job);

}  // namespace edge_rt::gpu
