#version 460
// Adds up what a row's experts made. Grid: rows, and stretches of as many numbers as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"

void main() {
  const int row = block_x(), i = block_y() * THREADS + thread(), width = low(args.width);
  if (i >= width) return;
  const int chosen = args.routing.chosen, at = row * width + i;
  Floats weights = args.routing.weights, outs = args.outs, shared_ = args.shared_, residual = args.residual;
  Ints places = args.places;
  float value = 0.0;
  for (int k = row * chosen; k < (row + 1) * chosen; ++k) {
    value = fused(weights.at[k], row_of(outs, places.at[k], width).at[i], value);
  }
  if (!is_null(uvec2(shared_))) {
    if (args.has_shares != 0) {
      Floats shares = args.routing.shares;
      value = fused(shares.at[row], shared_.at[at], value);
    } else {
      value = value + shared_.at[at];
    }
  }
  Floats y = args.y;
  y.at[at] = is_null(uvec2(residual)) ? value : fused(args.residual_scale, value, residual.at[at]);
}
