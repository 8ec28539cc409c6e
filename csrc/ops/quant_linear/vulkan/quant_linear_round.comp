#version 460
// Rounds rows of x for QuantLinear. Grid: rows, and stretches of 64 blocks.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_round.glsl"

KERNEL(RoundRows)

void main() {
  RoundJob job = RoundJob(uvec2(pushed.of_kernel));
  Floats x = row_of_x(job, block_x());
  round_stretch(job, x, norm_of_row(job, x), block_x(), block_y());
}
