#version 460
// What is to be done for each expert that has rows. Grid: as many experts as may have rows.
#define THREADS 32
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"
#include "ops/quant_linear/vulkan/quant_linear_formats.glsl"

bool rounds_rows(PackedParts weight) { return !is_in(WITH_FLOATS, weight.parts[0].format); }

// Rows from `begin` on among those of all.
Activations rows_of(Activations all, PackedParts weight, int begin, int rows) {
  const uint blocks = uint(low(all.blocks)), first = uint(begin);
  all.rows = Long(uvec2(uint(rows), 0u));
  all.codes = Bytes(advanced(uvec2(all.codes), first, blocks * uint(BLOCK) * (rounds_rows(weight) ? 1u : 4u)));
  all.scale = Floats(advanced(uvec2(all.scale), first, blocks * 4u));
  for (int i = 0; i < weight.kinds.count; ++i) {
    all.sums[i] = Words(advanced(uvec2(all.sums[i]), first, blocks * 4u * uint(weight.kinds.kinds[i].groups)));
  }
  return all;
}

void put_rounding(RoundJob own, Floats x, Long features, PackedParts weight, Activations rows) {
  Floats nothing = Floats(uvec2(0u));
  own.its.x = x;
  own.its.features = features;
  own.its.norm_weight = nothing;
  own.its.norm_bias = nothing;
  own.its.rounds = rounds_rows(weight) ? 1 : 0;
  own.its.kinds = weight.kinds;
  own.its.fine = weight.fine;
  own.its.out_ = rows;
}

// The product of a group of an expert's rows, from place number `begin` on.
void put_group(LinearJob own, int expert, int begin, int rows, bool is_up) {
  PackedParts weight = args.gate_up;
  if (!is_up) weight = args.down;
  Activations all = args.up_in;
  if (!is_up) all = args.down_in;
  own.its.in_ = rows_of(all, weight, begin, rows);
  for (int i = 0; i < weight.count; ++i) {
    const int tiles = low(weight.parts[i].tiles) / args.routing.experts, format = read_as(weight.parts[i].format);
    const uint tile_bytes = uint((low(weight.parts[i].blocks) >> unit_shift(format)) * unit_bytes(format));
    weight.parts[i].tiles = Long(uvec2(uint(tiles), 0u));
    weight.parts[i].data = Bytes(advanced(uvec2(weight.parts[i].data), uint(expert * tiles), tile_bytes));
  }
  weight.alternate = weight.count > 1 ? 1 : 0;
  own.its.weight = weight;
  const int activation = args.steps.activation;
  const bool is_gated = activation == ACTIVATION_SWIGLU || activation == ACTIVATION_GEGLU ||
                        activation == ACTIVATION_GELU_GATE;
  const bool is_paired = is_up && is_gated;
  Long width = args.width;
  if (is_up) width = args.intermediate;
  const int outputs = is_paired ? 2 * low(width) : low(width);
  own.its.paired = is_paired ? 1 : 0;
  own.its.width = width;
  own.its.out_features = Long(uvec2(uint(outputs), 0u));
  Floats bias = args.gate_up_bias, y = args.made, nothing = Floats(uvec2(0u));
  if (!is_up) {
    bias = args.down_bias;
    y = args.outs;
  }
  if (!is_null(uvec2(bias))) bias = row_of(bias, expert, outputs);
  own.its.bias = bias;
  own.its.gate = nothing;
  own.its.residual = nothing;
  own.its.post_norm = nothing;
  own.its.unpacked = Bytes(uvec2(0u));
  own.its.steps = args.steps;
  if (!is_up) own.its.steps = LinearSteps(0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0);
  own.its.steps.residual_scale = 1.0;
  own.its.y = row_of(y, begin, low(width));
}

void main() {
  Ints counts = args.counts;
  const int slot = block_x();
  if (slot >= counts.at[0]) return;
  ActiveExperts of_all = args.active_;
  const int expert = of_all.at[slot].expert, begin = of_all.at[slot].begin, rows = of_all.at[slot].rows;
  const int first_group = of_all.at[slot].first_group;
  if (thread() == 0) {
    PackedParts up = args.gate_up, down = args.down;
    put_rounding(rounding_at(slot, ACTIVE_UP_AT), args.x, args.width, up, rows_of(args.up_in, up, begin, rows));
    put_rounding(rounding_at(slot, ACTIVE_DOWN_AT), args.made, args.intermediate, down,
                 rows_of(args.down_in, down, begin, rows));
  }
  for (int group = thread(); group * GROUP_ROWS < rows; group += THREADS) {
    const int first = begin + group * GROUP_ROWS, count = rows_of_group(rows, group);
    put_group(product_at(first_group + group, GROUP_UP_AT), expert, first, count, true);
    put_group(product_at(first_group + group, GROUP_DOWN_AT), expert, first, count, false);
  }
}
