// GPU kernels against the golden bits: every case of QuantLinear, QuantEmbed, RowTopK and SpecAttention. What else is
// on record are ops of several kernels, which the CPU alone has.
#pragma once

#include "gpu/launcher.h"

namespace edge_rt::golden {

// Says which cases differ from those of a file. `launcher`: has finished each kernel when it returns. 0: none differs;
// 1: some do; 2: the file cannot be read.
int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher);

}  // namespace edge_rt::golden
