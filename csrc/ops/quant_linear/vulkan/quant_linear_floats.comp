#version 460
// QuantLinear of weights that are floats: every output is one chain of fused multiply-adds, inputs ascending. Grid:
// tiles or pairs of them, and groups of rows. A thread has an output; weights and x come through shared memory, the
// next inputs on their way while these are added.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_floats.glsl"

KERNEL(LinearRows)

void main() { multiply_floats(LinearJob(uvec2(pushed.of_kernel)), block_x(), block_y()); }
