// Structs that Vulkan kernels read lie as those of C++: nothing runs, it compiles. The checks are made of the kernels'
// SPIR-V by tools/vulkan_structs.py.
#include <cstddef>

#include "ops/copy_rows/copy_rows_gpu.h"
#include "ops/experts/experts_gpu.h"
#include "ops/gated_delta/gated_delta_gpu.h"
#include "ops/quant_embed/quant_embed_gpu.h"
#include "ops/quant_linear/quant_linear_gpu.h"
#include "ops/recurrent/recurrent_gpu.h"
#include "ops/row_top_k/row_top_k_gpu.h"
#include "ops/short_conv/short_conv_gpu.h"
#include "ops/spec_attention/spec_attention_gpu_args.h"
#include "ops/ssm_scan/ssm_scan_gpu.h"
#include "ops/state_conv/state_conv_gpu.h"

namespace edge_rt::gpu {
#include "vulkan_structs.inl"
}  // namespace edge_rt::gpu
