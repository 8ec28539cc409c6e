#version 460
// QuantLinear of up to 8 rows. Grid: tiles, or pairs of them.
#define THREADS 128
#define GROUPS 1
#define COLUMNS 8
#define OWN_GROUPS 1
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_few.glsl"

KERNEL(LinearRows)

void main() { multiply_few(LinearJob(uvec2(pushed.of_kernel)), block_x()); }
