// A bool of the structs that kernels of GPUs read: some GPUs have no bytes, not even in memory.
#pragma once

#include <cstdint>

namespace edge_rt {

using Flag = int32_t;

}  // namespace edge_rt
