#version 460
// Parts of rows. Grid: rows, and stretches of as many numbers as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"

struct SplitRows {
  Floats from;
  Long stride;
  Long rows;
  Long width;
  Long parts;
  Floats to[16];
};
KERNEL(SplitRows)

void main() {
  const int row = block_x(), i = block_y() * THREADS + thread(), width = low(args.width), part = i / width;
  if (part >= low(args.parts)) return;
  Floats source = Floats(advanced(uvec2(args.from), uint(row), 4u * uint(low(args.stride))));
  Floats target = Floats(advanced(uvec2(args.to[part]), uint(row), 4u * uint(width)));
  target.at[i - part * width] = source.at[i];
}
