#version 460
// The states of GatedDelta, and what rows read of them. Grid: halves of stripes of a head, and V heads.
#define THREADS 32
#include "gpu/vulkan/kernel.glsl"
#include "ops/gated_delta/vulkan/gated_delta.glsl"

const bool CORRECTS = true;

int keys();
int values();
int first_key();
int head_of_block();
int column_of_row();

int query_at(int row) { return row * (2 * keys() + 2 * low(args.pass.shape.value_heads)) + first_key(); }
int key_at(int row) { return query_at(row) + keys(); }
// Decays of V heads, and behind them their betas.
int decay_at(int row) { return query_at(row) - first_key() + 2 * keys() + head_of_block(); }
float decay_of(int row) {
  Floats prepared = args.pass.prepared;
  return prepared.at[decay_at(row)];
}
float d_of(int row, float decay, float dot) {
  Floats prepared = args.pass.prepared, qkv = args.pass.qkv;
  const float beta = prepared.at[decay_at(row) + low(args.pass.shape.value_heads)];
  const float v = qkv.at[row * (2 * keys() + values()) + 2 * keys() + column_of_row()];
  return beta * fused(-decay, dot, v);
}

#include "ops/recurrent/vulkan/matrix_columns.glsl"

void main() { compute_columns(args.pass.prepared); }
