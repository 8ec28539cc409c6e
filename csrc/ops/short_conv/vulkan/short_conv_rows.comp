#version 460
// ShortConv: a thread a channel of a row; short_conv.h says what is computed. Grid: rows, and stretches of as many
// channels as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"

const int MOST_TAPS = 16;

struct ConvPass {
  Long rows, past, capacity, done, window;
  int chain;
  Ints row_map, parents, depths;
  Long channels;
  Floats bcx, weight, bias, cache, y;
};
struct ConvArgs {
  ConvPass pass;
  Ints past;
};
KERNEL(ConvArgs)

shared int before[MOST_TAPS];  // places of the rows before the row, the nearest first
shared int count;

// u's row of the cache.
Floats cached_row(int place) {
  Ints rows = args.pass.row_map;
  return Floats(advanced(uvec2(args.pass.cache), uint(rows.at[place]), 4u * uint(low(args.pass.channels))));
}

// u of the row at `place`: the cache has it, unless it is of this pass, where whoever has that row may not be done.
float conv_u(int begin, int place, int c) {
  if (place < begin) return cached_row(place).at[c];
  const int channels = low(args.pass.channels), b = (place - begin) * 3 * channels + c;
  Floats bcx = args.pass.bcx;
  return bcx.at[b] * bcx.at[b + 2 * channels];
}

void main() {
  Ints past_length = args.past, parents = args.pass.parents;
  const int past = past_length.at[0], begin = past + low(args.pass.done), own = begin + block_x();
  const int channels = low(args.pass.channels), taps = low(args.pass.window);
  if (thread() == 0) {
    int found = 0;
    for (int place = own; found < taps - 1; ++found) {
      const int node = place - past;
      place = past + (node >= 0 ? parents.at[node] : node - 1);
      if (place < 0) break;
      before[found] = place;
    }
    count = found;
  }
  meet();
  const int c = block_y() * THREADS + thread();
  if (c >= channels) return;
  Floats weight = args.pass.weight, bias = args.pass.bias, bcx = args.pass.bcx, y = args.pass.y;
  int at = (taps - 1 - count) * channels + c;
  float sum = is_null(uvec2(bias)) ? 0.0 : bias.at[c];
  [[dont_unroll]] for (int i = count - 1; i >= 0; --i, at += channels) {
    sum = fused(weight.at[at], conv_u(begin, before[i], c), sum);
  }
  const float u = conv_u(begin, own, c);
  cached_row(own).at[c] = u;
  const float gate = bcx.at[(block_x() * 3 + 1) * channels + c];
  y.at[block_x() * channels + c] = gate * fused(weight.at[at], u, sum);
}
