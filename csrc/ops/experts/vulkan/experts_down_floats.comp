#version 460
// Products of groups of experts' rows with floats. Grid: tiles, or pairs of them, and as many groups as there may be.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"
#include "ops/quant_linear/vulkan/quant_linear_floats.glsl"

void main() {
  Ints counts = args.counts;
  if (block_y() < counts.at[1]) multiply_floats(product_at(block_y(), GROUP_DOWN_AT), block_x(), 0);
}
