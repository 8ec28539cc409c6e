#version 460
// The norms of rows, as floats. Grid: rows, and the norms of the router and of experts.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"
#include "ops/quant_linear/vulkan/quant_linear_round.glsl"

void main() {
  const bool is_first = block_y() == 0;
  RoundJob job = RoundJob(advanced(uvec2(pushed.of_kernel), 1u, is_first ? NORM_AT : EXPERT_NORM_AT));
  if (is_null(uvec2(job.its.norm_weight))) return;
  const int features = low(job.its.features);
  Floats x = row_of_x(job, block_x()), to = is_first ? args.normed : args.expert_normed;
  to = row_of(to, block_x(), features);
  const RowNorm norm = norm_of_row(job, x);
  for (int i = thread(); i < features; i += THREADS) to.at[i] = normed(job, x, norm, i);
}
