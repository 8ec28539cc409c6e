#version 460
// Rows of a packed matrix as floats, a thread a weight. Grid: rows, and stretches of 128 inputs. A row whose id is none
// of the matrix becomes NaN: nothing is read outside, and nobody takes it for an answer.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"
#include "ops/quant_linear/vulkan/quant_linear_formats.glsl"

struct EmbedRows {
  PackedWeight weight;
  Pairs ids;
  Long rows;
  Long out_features;
  Long features;
  float scale;
  Floats y;
};
KERNEL(EmbedRows)

int bits_at(Halves at, int place, int shift, int mask) { return int(byte_at(at, place)) >> shift & mask; }

// One code, less its offset but not a zero point: input i of row r of a block. See code_at of quant_linear_codes.inl.
int code_at(int format, Halves at, Halves finer, int i, int r) {
  const int k = i / 4, byte = 4 * r + i % 4, pair = 2 * (k % 4);
  if (is_in(WITH_BYTES, format)) return bitfieldExtract(int(byte_at(at, 64 * k + byte)), 0, 8);
  if (is_in(WITH_TWO_BITS | WITH_THREE_BITS, format)) {
    const int low_bits = bits_at(at, 64 * (k / 4) + byte, pair, 3);
    return is_in(WITH_TWO_BITS, format) ? low_bits : (low_bits | bits_at(at, 128 + byte, k, 1) << 2) - 4;
  }
  const int nibble = bits_at(at, 64 * (k / 2) + byte, 4 * (k % 2), 15);
  if (is_in(WITH_TABLE, format)) {
    return bitfieldExtract(int(table_byte(is_in(WITH_DOUBLED_TABLE, format) ? 1 : 0, uint(nibble))), 0, 8);
  }
  if (is_in(WITH_FIVE_BITS, format)) {
    return (nibble | bits_at(at, 256 + byte, k, 1) << 4) - (is_in(W5, format) ? 16 : 0);
  }
  if (is_in(WITH_SIX_BITS, format)) return (nibble | bits_at(at, 256 + 64 * (k / 4) + byte, pair, 3) << 4) - 32;
  if (is_in(WITH_FINER, format)) return nibble << 4 | bits_at(finer, 64 * (k / 2) + byte, 4 * (k % 2), 15);
  return nibble - (is_in(W4, format) ? 8 : 0);
}

float coded_weight(int format, uvec2 tile, uvec2 finer, int i, int r) {
  const int block = i / BLOCK, number = block & ((1 << unit_shift(format)) - 1);
  const int unit = (block >> unit_shift(format)) * unit_bytes(format), in_block = i % BLOCK;
  const int part = in_block >> (5 - group_shift(format)), pair = r >> 1;
  const ScaleWords words = load_scales(tile, format, unit, (number << group_shift(format)) + part, pair);
  const GroupScale scale = group_scale(format, words);
  int code = code_at(format, Halves(advanced(tile, uint(unit + number * code_bytes(format)), 1u)),
                     Halves(advanced(finer, uint(block), uint(finer_bytes(format)))), in_block, r);
  if (is_in(WITH_ZERO_POINTS, format)) code -= int(words.scales >> 8 * (r & 1) & 0xffu);
  float value = scale.d[r & 1] * float(code);
  if (is_in(WITH_MINIMA, format)) value = fused(scale.d[r & 1], float(code), scale.minimum[r & 1]);
  return is_in(SCALED_BY_FLOATS, format) ? Floats(tile).at[(unit + d_at(format) >> 2) + r] * value : value;
}

float weight_of(int format, uvec2 tile, uvec2 finer, int i, int r) {
  const int place = i * TILE_ROWS + r;
  if (is_in(F32, format)) return Floats(tile).at[place];
  if (is_in(F16, format)) return float_of_half(uint(Halves(tile).at[place]));
  if (is_in(BF16, format)) return uintBitsToFloat(uint(Halves(tile).at[place]) << 16);
  return coded_weight(format, tile, finer, i, r);
}

void main() {
  const int row = block_x(), i = block_y() * THREADS + thread(), features = low(args.features);
  if (i >= features) return;
  const uvec2 id = args.ids.at[row];
  Floats y = Floats(advanced(uvec2(args.y), uint(row), uint(features) * 4u));
  if (id.y != 0u || id.x >= uint(low(args.out_features))) {
    y.at[i] = uintBitsToFloat(NAN_BITS);
    return;
  }
  const int stored = args.weight.format, blocks = low(args.weight.blocks);
  // The one format of `choices`: what others need is not compiled.
  const int format = bitCount(choices & ALL_FORMATS) == 1 ? findLSB(choices & ALL_FORMATS) : read_as(stored);
  const uint tile = id.x / uint(TILE_ROWS), tile_bytes = uint((blocks >> unit_shift(format)) * unit_bytes(format));
  const uvec2 data = uvec2(args.weight.data), behind = advanced(data, uint(low(args.weight.tiles)), tile_bytes);
  const float value = weight_of(format, advanced(data, tile, tile_bytes),
                                advanced(behind, tile, uint(blocks * finer_bytes(stored))), i, int(id.x) % TILE_ROWS);
  y.at[i] = value * args.scale;
}
