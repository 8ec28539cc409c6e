// Nodes of Experts whose kernels a launcher starts, on the fake ONNX Runtime.
#pragma once

#include "gpu/launcher.h"
#include "tests/golden_node.h"

namespace edge_rt::golden {

// `launcher`: has finished each kernel when it returns.
NodeRunner experts_of(gpu::Launcher* launcher);

}  // namespace edge_rt::golden
