// Products of weights with the codes of few rows of x. A block of threads takes a tile, or a pair of them. Its threads
// read different groups of weights, all of them under way at once, and multiply each with all rows; the terms meet in
// shared memory, where a thread an output adds them up in the order of the CPU while the next groups are on their way.
//
// Define before: GROUPS of up to COLUMNS rows of x each, and OWN_GROUPS of weights that a thread takes at once.

#include "ops/quant_linear/vulkan/quant_linear_block.glsl"
#include "ops/quant_linear/vulkan/quant_linear_finish.glsl"

const int SLOTS = THREADS / 8 / GROUPS;      // of groups of weights, each with a thread for two rows of the tile
const int ENTRIES = SLOTS * OWN_GROUPS;      // groups of weights at once
const int ALL_COLUMNS = GROUPS * COLUMNS;
const int ENTRY = TILE_ROWS * ALL_COLUMNS + 16;  // a gap spreads entries over the banks of shared memory

shared float terms[ENTRIES * ENTRY];
shared float minima[ENTRIES * TILE_ROWS];
shared float scales_of_x[ENTRIES * ALL_COLUMNS];
shared float totals_of_x[ENTRIES * ALL_COLUMNS];  // what minima are multiplied with

// What belongs to rows of x: of all entries that are taken at once a thread has one.
struct OwnScale {
  float scale, total;
};
OwnScale load_scale(LinearJob job, FoundTile tile, int format, int first, int count) {
  OwnScale found = OwnScale(0.0, 0.0);
  const int entry = thread() / ALL_COLUMNS, column = thread() % COLUMNS, group = thread() / COLUMNS % GROUPS;
  const int blocks = low(job.its.in_.blocks), rows = rows_of_group(low(job.its.in_.rows), group);
  if (entry >= min(count, ENTRIES) || column >= rows) return found;
  const int before = group * GROUP_ROWS * blocks, block = first + entry >> group_shift(format);
  found.scale = job.its.in_.scale.at[before + block * rows + column];
  if (is_in(WITH_MINIMA, format)) {
    Words sums = job.its.in_.sums[tile.kind];
    found.total = uintBitsToFloat(sums.at[(before << group_shift(format)) + (first + entry) * rows + column]);
  }
  return found;
}

// Sums of the thread's outputs, an output of every group of rows.
void add_up_tile(LinearJob job, FoundTile tile, int format, out float f[GROUPS]) {
  [[unroll]] for (int g = 0; g < GROUPS; ++g) f[g] = 0.0;
  const int shift = group_shift(format), parts_of_block = 1 << shift;
  const int blocks = low(job.its.in_.blocks), plain = low(job.its.weight.parts[0].blocks), all = blocks << shift;
  const int pair = thread() & 7, slot = (thread() >> 3) % SLOTS, group = (thread() >> 3) / SLOTS;
  const int rows = clamp(low(job.its.in_.rows) - group * GROUP_ROWS, 0, COLUMNS), before = group * GROUP_ROWS * blocks;
  Quads codes = Quads(advanced(uvec2(job.its.in_.codes), uint(before), uint(BLOCK)));
  Words sums = job.its.in_.sums[tile.kind];
  LoadedGroup loaded[OWN_GROUPS];
  OwnScale own;
  for (int first = -ENTRIES; first < all; first += ENTRIES) {
    if (first >= 0) {
      [[unroll]] for (int i = 0; i < OWN_GROUPS; ++i) {
        const int entry = slot + i * SLOTS, number = first + entry, part = number & (parts_of_block - 1);
        if (number >= all) break;
        const WeightGroup weights = unpack_group(format, part, loaded[i]);
        for (int column = 0; column < rows; ++column) {
          const InputCodes x = load_input(codes, format, (number >> shift) * rows + column, part);
          int sum = 0;
          if (is_in(WITH_ZERO_POINTS, format)) sum = int(sums.at[(before << shift) + number * rows + column]);
          const vec2 found = terms_of(format, weights, x, sum);
          const int at = entry * ENTRY + (group * COLUMNS + column) * TILE_ROWS + 2 * pair;
          terms[at] = found.x;
          terms[at + 1] = found.y;
        }
        if (is_in(WITH_MINIMA, format) && group == 0) {
          minima[entry * TILE_ROWS + 2 * pair] = weights.minimum.x;
          minima[entry * TILE_ROWS + 2 * pair + 1] = weights.minimum.y;
        }
      }
      if (thread() < ENTRIES * ALL_COLUMNS) {
        scales_of_x[thread()] = own.scale;
        if (is_in(WITH_MINIMA, format)) totals_of_x[thread()] = own.total;
      }
      meet();
    }
    const int next = first + ENTRIES;
    own = load_scale(job, tile, format, next, all - next);
    [[unroll]] for (int i = 0; i < OWN_GROUPS; ++i) {
      const int number = next + slot + i * SLOTS;
      if (number >= all) break;
      loaded[i] = load_group(tile, format, weights_of(job, number >> shift, plain), number & (parts_of_block - 1), pair);
    }
    if (first < 0) continue;
    if (thread() < TILE_ROWS * COLUMNS) {
      const int row = thread() % TILE_ROWS, column = thread() / TILE_ROWS, count = min(all - first, ENTRIES);
      for (int entry = 0; entry < count; ++entry) {
        [[unroll]] for (int g = 0; g < GROUPS; ++g) {
          const int of_x = entry * ALL_COLUMNS + g * COLUMNS + column;
          f[g] = fused(terms[entry * ENTRY + g * COLUMNS * TILE_ROWS + thread()], scales_of_x[of_x], f[g]);
          if (is_in(WITH_MINIMA, format)) f[g] = fused(minima[entry * TILE_ROWS + row], totals_of_x[of_x], f[g]);
        }
      }
    }
    meet();
  }
  if (is_in(SCALED_BY_FLOATS, format)) {
    [[unroll]] for (int g = 0; g < GROUPS; ++g) f[g] = row_scale_of(tile, format, thread() % TILE_ROWS) * f[g];
  }
}

// Block `column` of the grid's tiles, or pairs of them.
void multiply_few(LinearJob job, int column_of_grid) {
  prepare_tables();
  const int step = job.its.paired != 0 ? 2 : 1, tile = column_of_grid * step;
  float first[GROUPS], f[GROUPS];  // of a pair's first tile, and of the last
  [[dont_unroll]] for (int i = 0; i < step; ++i) {
    const FoundTile found = find_tile(job, tile + i);
    [[unroll]] for (int g = 0; g < GROUPS; ++g) first[g] = f[g];
    if (is_choice(0, found.format)) {
      add_up_tile(job, found, format_of_choices(0), f);
    } else if (is_choice(1, found.format)) {
      add_up_tile(job, found, format_of_choices(1), f);
    } else if (is_choice(2, found.format)) {
      add_up_tile(job, found, format_of_choices(2), f);
    }
  }
  const int column = thread() / TILE_ROWS;
  [[dont_unroll]] for (int g = 0; g < GROUPS; ++g) {
    const int row = g * GROUP_ROWS + column;
    if (column >= COLUMNS || row >= low(job.its.in_.rows)) continue;
    float value = f[0], up;
    if (GROUPS > 1 && g > 0) value = f[GROUPS - 1];
    up = value;
    if (step == 2) value = GROUPS > 1 && g > 0 ? first[GROUPS - 1] : first[0];
    put_output(job, tile, row, thread() % TILE_ROWS, value, up);
  }
}
