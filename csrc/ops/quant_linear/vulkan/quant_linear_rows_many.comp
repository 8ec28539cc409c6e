#version 460
// QuantLinear of many rows. Grid: stretches of 4 tiles, or pairs of them, and of 4 groups of rows. A thread takes two
// rows of a tile and a group of rows of x, whose sums it keeps: nothing is joined.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_block.glsl"
#include "ops/quant_linear/vulkan/quant_linear_finish.glsl"

KERNEL(LinearRows)

const int OUTPUTS = 2 * GROUP_ROWS;  // of a thread: both rows of a tile for the first row of x, then for the next ones

struct Sums {
  float of[OUTPUTS];
};

// Where a fused multiply-add is long, there is one for all outputs, which come to it in turns.
void add_products(inout Sums f, Sums a, Sums b) {
#ifdef MANY_AT_ONCE  // as devices with a fma of their own run it, for tests on others
  const bool is_long = false;
#else
  const bool is_long = (mended & MENDS_FMA) != 0u;
#endif
  if (!is_long) {
    [[unroll]] for (int i = 0; i < OUTPUTS; ++i) f.of[i] = fused(a.of[i], b.of[i], f.of[i]);
    return;
  }
  [[dont_unroll]] for (int i = 0; i < OUTPUTS; ++i) {
    const float next = fused(a.of[0], b.of[0], f.of[0]);
    [[unroll]] for (int k = 0; k + 1 < OUTPUTS; ++k) {
      f.of[k] = f.of[k + 1];
      a.of[k] = a.of[k + 1];
      b.of[k] = b.of[k + 1];
    }
    f.of[OUTPUTS - 1] = next;
  }
}

void add_up_group(LinearJob job, FoundTile tile, int format, int group, int pair, out Sums f) {
  [[unroll]] for (int i = 0; i < OUTPUTS; ++i) f.of[i] = 0.0;
  const int shift = group_shift(format), blocks = low(job.its.in_.blocks);
  const int plain = low(job.its.weight.parts[0].blocks), rows = rows_of_group(low(job.its.in_.rows), group);
  const uint first_row = uint(group * GROUP_ROWS);
  Quads codes = Quads(advanced(uvec2(job.its.in_.codes), first_row, uint(blocks * BLOCK)));
  Floats scale = Floats(advanced(uvec2(job.its.in_.scale), first_row, uint(blocks) * 4u));
  Words sums = Words(advanced(uvec2(job.its.in_.sums[tile.kind]), first_row, uint(blocks << shift) * 4u));
  for (int number = 0; number < blocks << shift; ++number) {
    const int block = number >> shift, part = number & ((1 << shift) - 1);
    const WeightGroup weights =
        unpack_group(format, part, load_group(tile, format, weights_of(job, block, plain), part, pair));
    Sums found, factor, totals, minimum;
    [[unroll]] for (int i = 0; i < GROUP_ROWS; ++i) {
      const int column = min(i, rows - 1);  // rows that do not exist are the last one again
      const InputCodes x = load_input(codes, format, block * rows + column, part);
      uint sum = 0u;
      if (is_in(WITH_ZERO_POINTS | WITH_MINIMA, format)) sum = sums.at[number * rows + column];
      const vec2 both = terms_of(format, weights, x, int(sum));
      found.of[2 * i] = both.x;
      found.of[2 * i + 1] = both.y;
      factor.of[2 * i] = factor.of[2 * i + 1] = scale.at[block * rows + column];
      totals.of[2 * i] = totals.of[2 * i + 1] = uintBitsToFloat(sum);
      minimum.of[2 * i] = weights.minimum.x;
      minimum.of[2 * i + 1] = weights.minimum.y;
    }
    add_products(f, found, factor);
    if (is_in(WITH_MINIMA, format)) add_products(f, minimum, totals);
  }
  if (is_in(SCALED_BY_FLOATS, format)) {
    [[unroll]] for (int i = 0; i < OUTPUTS; ++i) f.of[i] = row_scale_of(tile, format, 2 * pair + (i & 1)) * f.of[i];
  }
}

void main() {
  prepare_tables();
  LinearJob job = LinearJob(uvec2(pushed.of_kernel));
  const int step = job.its.paired != 0 ? 2 : 1;
  int tiles = 0;
  for (int part = 0; part < job.its.weight.count; ++part) tiles += low(job.its.weight.parts[part].tiles);
  // Threads behind the last tile or group compute that one again.
  const int wanted = block_x() * 4 + (thread() >> 3 & 3), tile = min(wanted, tiles / step - 1) * step;
  const int groups = (low(job.its.in_.rows) + GROUP_ROWS - 1) / GROUP_ROWS, own_group = block_y() * 4 + (thread() >> 5);
  const int group = min(own_group, groups - 1), pair = thread() & 7;
  Sums first, f;  // of a pair's first tile, and of the last
  [[dont_unroll]] for (int i = 0; i < step; ++i) {
    const FoundTile found = find_tile(job, tile + i);
    first = f;
    if (is_choice(0, found.format)) {
      add_up_group(job, found, format_of_choices(0), group, pair, f);
    } else if (is_choice(1, found.format)) {
      add_up_group(job, found, format_of_choices(1), group, pair, f);
    } else if (is_choice(2, found.format)) {
      add_up_group(job, found, format_of_choices(2), group, pair, f);
    }
  }
  if (wanted * step != tile || group != own_group) return;
  const int rows = rows_of_group(low(job.its.in_.rows), group);
  [[dont_unroll]] for (int i = 0; i < 2 * rows; ++i) {
    float value = 0.0, up = 0.0;
    [[unroll]] for (int k = 0; k < OUTPUTS; ++k) {
      if (k == i) {
        up = f.of[k];
        value = step == 2 ? first.of[k] : f.of[k];
      }
    }
    put_output(job, tile, group * GROUP_ROWS + (i >> 1), 2 * pair + (i & 1), value, up);
  }
}
