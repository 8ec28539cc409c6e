// Products of weights that are floats: of blocks of 128 threads, which take a tile, or a pair of them, and a group of
// rows.

#include "ops/quant_linear/vulkan/quant_linear_block.glsl"
#include "ops/quant_linear/vulkan/quant_linear_finish.glsl"

const int DEPTH = 64;  // inputs at once
const int OWN_WEIGHTS = DEPTH * TILE_ROWS / THREADS, OWN_INPUTS = DEPTH * GROUP_ROWS / THREADS;
shared float weights_of_stage[DEPTH * TILE_ROWS];
shared float inputs_of_stage[GROUP_ROWS * DEPTH];

// Neighbouring weights, and numbers of a row of x.
struct FloatLoads {
  float weights[OWN_WEIGHTS];
  float x[OWN_INPUTS];
};

FloatLoads load_stage(FoundTile tile, Floats x, int rows, int features, int first) {
  FloatLoads found;
  const int at = thread() * OWN_WEIGHTS, place = first * TILE_ROWS + at;
  const bool is_there = first + at / TILE_ROWS < features;
  [[unroll]] for (int i = 0; i < OWN_WEIGHTS; i += 4) {
    uvec4 bits = uvec4(0u);
    if (is_there && is_in(F32, tile.format)) {
      bits = Quads(tile.weight).at[(place + i) >> 2];
    } else if (is_there) {
      const uvec2 halves = Pairs(tile.weight).at[(place + i) >> 2];
      bits = uvec4(halves.x & 0xffffu, halves.x >> 16, halves.y & 0xffffu, halves.y >> 16);
    }
    [[unroll]] for (int k = 0; k < 4; ++k) {
      if (is_in(F16, tile.format)) {
        found.weights[i + k] = float_of_half(bits[k]);
      } else {
        found.weights[i + k] = uintBitsToFloat(is_in(F32, tile.format) ? bits[k] : bits[k] << 16);
      }
    }
  }
  const int row = min(thread() / TILE_ROWS, rows - 1);
  [[unroll]] for (int i = 0; i < OWN_INPUTS; ++i) {
    const int column = first + thread() % TILE_ROWS + TILE_ROWS * i;
    found.x[i] = column < features ? x.at[row * features + column] : 0.0;
  }
  return found;
}

float add_up_floats(LinearJob job, FoundTile tile, int group) {
  const int features = low(job.its.in_.blocks) * BLOCK, rows = rows_of_group(low(job.its.in_.rows), group);
  const int column = thread() / TILE_ROWS, row = thread() % TILE_ROWS;
  Floats x = Floats(advanced(uvec2(job.its.in_.codes), uint(group * GROUP_ROWS), uint(features) * 4u));
  FloatLoads loads = load_stage(tile, x, rows, features, 0);
  float f = 0.0;
  for (int first = 0; first < features; first += DEPTH) {
    [[unroll]] for (int i = 0; i < OWN_WEIGHTS; ++i) weights_of_stage[thread() * OWN_WEIGHTS + i] = loads.weights[i];
    [[unroll]] for (int i = 0; i < OWN_INPUTS; ++i) inputs_of_stage[column * DEPTH + row + TILE_ROWS * i] = loads.x[i];
    meet();
    if (first + DEPTH < features) loads = load_stage(tile, x, rows, features, first + DEPTH);
    for (int k = 0; k < DEPTH; ++k) {
      f = fused(inputs_of_stage[column * DEPTH + k], weights_of_stage[k * TILE_ROWS + row], f);
    }
    meet();
  }
  return f;
}

void multiply_floats(LinearJob job, int column_of_grid, int group) {
  const int step = job.its.paired != 0 ? 2 : 1, tile = column_of_grid * step;
  float value, f;
  [[dont_unroll]] for (int i = 0; i < step; ++i) {
    const float found = add_up_floats(job, find_tile(job, tile + i), group);
    if (i == 0) value = found;
    f = found;
  }
  const int column = thread() / TILE_ROWS;
  if (column >= rows_of_group(low(job.its.in_.rows), group)) return;
  put_output(job, tile, group * GROUP_ROWS + column, thread() % TILE_ROWS, value, f);
}
