#version 460
// Rows times one number. Grid: rows, and stretches of as many numbers as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"

struct ScaleRows {
  Floats x;
  Floats factor;
  Long rows;
  Long width;
  Floats y;
};
KERNEL(ScaleRows)

void main() {
  const int row = block_x(), i = block_y() * THREADS + thread(), width = low(args.width);
  if (i >= width) return;
  Floats x = Floats(advanced(uvec2(args.x), uint(row), 4u * uint(width)));
  Floats y = Floats(advanced(uvec2(args.y), uint(row), 4u * uint(width)));
  Floats factor = args.factor;
  y.at[i] = x.at[i] * factor.at[0];
}
