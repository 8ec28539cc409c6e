#version 460
// The norm and the gate of GatedDelta. Grid: rows, and V heads. A thread reads of y what it writes.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/gated_delta/vulkan/gated_delta.glsl"

void main() {
  const int dim = low(args.pass.shape.value_dim);
  const int first = (block_x() * low(args.pass.shape.value_heads) + block_y()) * dim;
  Floats y = args.pass.y, norm = args.pass.norm, z = args.pass.z;
  float sum = 0.0;
  for (int i = thread(); i < dim; i += THREADS) sum = fused(y.at[first + i], y.at[first + i], sum);
  const float scale = rms_scale_of(joined_row_sum(sum), dim, args.pass.epsilon);
  for (int i = thread(); i < dim; i += THREADS) {
    y.at[first + i] = ((y.at[first + i] * scale) * norm.at[i]) * vf_silu(z.at[first + i]);
  }
}
