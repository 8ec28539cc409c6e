#version 460
// Rounds rows of experts. Grid: places, and stretches of 64 blocks.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"
#include "ops/quant_linear/vulkan/quant_linear_round.glsl"

void main() {
  Ints slots = args.slots, numbers = args.numbers;
  ActiveExperts of_all = args.active_;
  const int place = block_x(), slot = slots.at[place], row = place - of_all.at[slot].begin;
  Floats x = row_of(args.x, numbers.at[place], low(args.width));
  round_stretch(rounding_at(slot, ACTIVE_UP_AT), x, RowNorm(0.0, 1.0), row, block_y());
}
