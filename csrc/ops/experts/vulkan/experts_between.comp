#version 460
// Rounds rows of experts between their products. Grid: places, and stretches of 64 blocks.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"
#include "ops/quant_linear/vulkan/quant_linear_round.glsl"

void main() {
  Ints slots = args.slots;
  ActiveExperts of_all = args.active_;
  const int place = block_x(), slot = slots.at[place], row = place - of_all.at[slot].begin;
  Floats x = row_of(args.made, place, low(args.intermediate));
  round_stretch(rounding_at(slot, ACTIVE_DOWN_AT), x, RowNorm(0.0, 1.0), row, block_y());
}
