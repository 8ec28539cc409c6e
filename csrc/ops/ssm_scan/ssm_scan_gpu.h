// SsmScan on a GPU.
#pragma once

#include "ops/ssm_scan/ssm_scan.h"
#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

using SsmArgs = MatrixArgs<SsmPass>;

// Computes a pass. False: the launcher could not.
bool enqueue_ssm_scan(Launcher* launcher, const SsmArgs& args);

}  // namespace edge_rt::gpu
