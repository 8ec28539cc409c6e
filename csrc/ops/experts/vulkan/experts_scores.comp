#version 460
// Scores of experts. Grid: experts, and behind them the gate of what is shared; rows.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/experts/vulkan/experts.glsl"

void main() {
  const int row = block_y(), expert = block_x(), features = low(args.routing.features);
  const int experts = args.routing.experts;
  const bool is_gate = expert == experts;
  if (is_gate && is_null(uvec2(args.routing.shared_gate))) return;
  Floats x = row_of(args.routing.x, row, features);
  Floats weight = args.routing.shared_gate;
  if (!is_gate) weight = row_of(args.routing.router, expert, features);
  float sum = 0.0;
  for (int i = thread(); i < features; i += THREADS) sum = fused(x.at[i], weight.at[i], sum);
  const float score = joined_row_sum(sum);
  if (thread() != 0) return;
  if (is_gate) {
    Floats shares = args.routing.shares;
    shares.at[row] = vf_sigmoid(score);
  } else {
    Floats scores = args.routing.scores, bias = args.routing.bias;
    const int at = row * ((experts + 15) / 16 * 16) + expert;
    scores.at[at] = is_null(uvec2(bias)) ? score : score + bias.at[expert];
  }
}
