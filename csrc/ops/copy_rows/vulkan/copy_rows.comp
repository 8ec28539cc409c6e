#version 460
// Copies of rows: a thread a number. Grid: rows, and stretches of as many numbers as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"

struct CopyRows {
  Floats from;
  Pairs ids;  // of 64 bits
  Long count;
  Long length_;
  Long rows;
  Long width;
  Floats to;
  Long stride;
};
KERNEL(CopyRows)

void main() {
  const int row = block_x(), i = block_y() * THREADS + thread(), width = low(args.width);
  if (i >= width) return;
  int from = row;
  if (!is_null(uvec2(args.ids))) {
    const int count = low(args.count), length = low(args.length_), id = int(args.ids.at[row % count].x);
    from = row / count * length + (id < 0 ? id + length : id);
  }
  Floats source = Floats(advanced(uvec2(args.from), uint(from), 4u * uint(width)));
  Floats target = Floats(advanced(uvec2(args.to), uint(row), 4u * uint(low(args.stride))));
  target.at[i] = source.at[i];
}
