#version 460
// The skip, the gate and the norm of SsmScan. Grid: rows, and groups. A thread reads of y what it writes.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/ssm_scan/vulkan/ssm_scan.glsl"

void main() {
  const int keys = low(args.pass.shape.key_heads) * low(args.pass.shape.key_dim);
  const int dim = low(args.pass.shape.value_dim), values = low(args.pass.shape.value_heads) * dim;
  const int row = block_x(), count = values / low(args.pass.shape.key_heads), first = block_y() * count;
  const int x = row * (values + 2 * keys), order = args.pass.order;
  const bool gates_first = order != NORM_GATE;
  Floats z = Floats(advanced(uvec2(args.pass.z), uint(row), 4u * uint(low(args.pass.z_stride))));
  Floats y = Floats(advanced(uvec2(args.pass.y), uint(row), 4u * uint(values)));
  Floats xbc = args.pass.xbc, skip = args.pass.skip, norm = args.pass.norm;
  float sum = 0.0;
  for (int i = first + thread(); i < first + count; i += THREADS) {
    float value = fused(skip.at[i / dim], xbc.at[x + i], y.at[i]);
    if (gates_first) value = value * vf_silu(z.at[i]);
    y.at[i] = value;
    sum = fused(value, value, sum);
  }
  if (order == GATE) return;
  const float scale = rms_scale_of(joined_row_sum(sum), count, args.pass.epsilon);
  for (int i = first + thread(); i < first + count; i += THREADS) {
    const float value = (y.at[i] * scale) * norm.at[i];
    y.at[i] = gates_first ? value : value * vf_silu(z.at[i]);
  }
}
