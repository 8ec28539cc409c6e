#version 460
// RMSNorm of what QuantLinear made, and the residual behind it. Grid: rows, and groups of a row that are normed by
// themselves.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"

KERNEL(LinearRows)

void main() {
  const int width = low(args.post_width), first = block_x() * low(args.width) + block_y() * width;
  Floats y = args.y;
  float sum = 0.0;
  if (thread() < 64) {
    for (int i = thread(); i < width; i += 64) sum = fused(y.at[first + i], y.at[first + i], sum);
  }
  const float rms = rms_scale_of(joined_row_sum(sum), width, args.post_epsilon);
  const bool has_residual = !is_null(uvec2(args.residual));
  for (int i = thread(); i < width; i += THREADS) {
    float v = y.at[first + i] * rms * args.post_norm.at[i];
    if (has_residual) v = fused(args.steps.residual_scale, v, args.residual.at[first + i]);
    y.at[first + i] = v;
  }
}
