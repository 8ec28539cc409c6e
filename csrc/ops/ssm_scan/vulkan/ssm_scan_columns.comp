#version 460
// The states of SsmScan, and what rows read of them. Grid: halves of stripes of a head, and heads.
#define THREADS 32
#include "gpu/vulkan/kernel.glsl"
#include "ops/ssm_scan/vulkan/ssm_scan.glsl"

const bool CORRECTS = false;

int keys();
int values();
int first_key();
int head_of_block();
int column_of_row();

int row_at(int row) { return row * (values() + 2 * keys()); }
int key_at(int row) { return row_at(row) + values() + first_key(); }
int query_at(int row) { return key_at(row) + keys(); }
// Decays of heads, and behind them their steps.
float decay_of(int row) {
  Floats prepared = args.pass.prepared;
  return prepared.at[row * 2 * low(args.pass.shape.value_heads) + head_of_block()];
}
float d_of(int row, float decay, float dot) {
  Floats prepared = args.pass.prepared, xbc = args.pass.xbc;
  const int heads = low(args.pass.shape.value_heads);
  return prepared.at[row * 2 * heads + heads + head_of_block()] * xbc.at[row_at(row) + column_of_row()];
}

#include "ops/recurrent/vulkan/matrix_columns.glsl"

void main() { compute_columns(args.pass.xbc); }
