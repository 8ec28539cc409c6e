// Runs passes of attention by GPU kernels, and by the CPU's.
#pragma once

#include <string>
#include <vector>

#include "gpu/launcher.h"
#include "tests/golden_ops.h"

namespace edge_rt::golden {

// A pass whose tree begins with `done` nodes that earlier passes have appended; the rows' qkv alone is given. Memory is
// exactly as large as kernels may touch, and scratch memory full of rubbish. The launcher has finished each kernel when
// it returns.
std::vector<float> run_on_gpu(gpu::Launcher* launcher, Attention& attention, const float* qkv,
                              const std::vector<int32_t>& parents, int64_t past, int64_t done);

// The same by the CPU's kernels.
std::vector<float> run_on_cpu(const KernelTable& kernels, Attention& attention, const std::vector<float>& qkv,
                              const std::vector<int32_t>& parents, int64_t past, int64_t done);

}  // namespace edge_rt::golden
