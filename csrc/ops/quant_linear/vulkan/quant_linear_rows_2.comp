#version 460
// QuantLinear of up to 2 rows. Grid: tiles, or pairs of them.
#define THREADS 128
#define GROUPS 1
#define COLUMNS 2
#define OWN_GROUPS 2
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_few.glsl"

KERNEL(LinearRows)

void main() { multiply_few(LinearJob(uvec2(pushed.of_kernel)), block_x()); }
