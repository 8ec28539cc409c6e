#version 460
// What rows of SsmScan need once. Grid: rows.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/ssm_scan/vulkan/ssm_scan.glsl"

void main() {
  const int row = block_x(), heads = low(args.pass.shape.value_heads), draft = row - certain_rows();
  Floats prepared = args.pass.prepared, a_scale = args.pass.a_scale, dt_bias = args.pass.dt_bias;
  Floats t = Floats(advanced(uvec2(args.pass.t), uint(row), 4u * uint(low(args.pass.t_stride))));
  Floats noted = Floats(uvec2(0u));
  if (draft >= 0) noted = transition_of(written_slot(), draft);
  for (int h = thread(); h < heads; h += THREADS) {
    const float step = vf_softplus(t.at[h] + dt_bias.at[h]), decay = vf_exp(a_scale.at[h] * step);
    prepared.at[row * 2 * heads + h] = decay;
    prepared.at[row * 2 * heads + heads + h] = step;
    if (draft >= 0) noted.at[h] = decay;
  }
  if (draft < 0) return;
  const int keys = low(args.pass.shape.key_heads) * low(args.pass.shape.key_dim);
  const int values = heads * low(args.pass.shape.value_dim), b = row * (values + 2 * keys) + values;
  Floats xbc = args.pass.xbc;
  for (int i = thread(); i < keys; i += THREADS) noted.at[heads + i] = xbc.at[b + i];
}
