#version 460
// What rows of GatedDelta need once. Grid: rows, and K heads; behind these what V heads need of a row.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/gated_delta/vulkan/gated_delta.glsl"

// A head of a row, times `factor` over its length, by all threads of a block; and in the transition, if there is one.
void make_unit(Floats from, int first, float factor, Floats to, int place, Floats noted, int place_noted) {
  const int n = low(args.pass.shape.key_dim);
  float sum = 0.0;
  for (int i = thread(); i < n; i += THREADS) sum = fused(from.at[first + i], from.at[first + i], sum);
  const float total = joined_row_sum(sum);
  const float scale = div_exact(1.0, sqrt_exact(total + args.pass.key_epsilon)) * factor;
  for (int i = thread(); i < n; i += THREADS) {
    const float unit = from.at[first + i] * scale;
    to.at[place + i] = unit;
    if (!is_null(uvec2(noted))) noted.at[place_noted + i] = unit;
  }
}

void main() {
  const int row = block_x(), key_head = block_y(), key_heads = low(args.pass.shape.key_heads);
  const int dim = low(args.pass.shape.key_dim), heads = low(args.pass.shape.value_heads), keys = key_heads * dim;
  const int values = heads * low(args.pass.shape.value_dim), draft = row - certain_rows();
  Floats prepared = args.pass.prepared;
  const int q = row * (2 * keys + 2 * heads);
  Floats noted = Floats(uvec2(0u));
  if (draft >= 0) noted = transition_of(written_slot(), draft);
  if (key_head < key_heads) {
    const int at = key_head * dim, q_in = row * (2 * keys + values) + at;
    Floats qkv = args.pass.qkv, nowhere = Floats(uvec2(0u));
    make_unit(qkv, q_in, div_exact(1.0, sqrt_exact(float(dim))), prepared, q + at, nowhere, 0);
    make_unit(qkv, q_in + keys, 1.0, prepared, q + keys + at, noted, heads + at);
    return;
  }
  Floats a = args.pass.a, b = args.pass.b, a_scale = args.pass.a_scale, dt_bias = args.pass.dt_bias;
  const int decays = q + 2 * keys, betas = decays + heads;
  for (int h = thread(); h < heads; h += THREADS) {
    const float decay = vf_exp(a_scale.at[h] * vf_softplus(a.at[row * heads + h] + dt_bias.at[h]));
    prepared.at[decays + h] = decay;
    prepared.at[betas + h] = vf_sigmoid(b.at[row * heads + h]);
    if (draft >= 0) noted.at[h] = decay;
  }
}
